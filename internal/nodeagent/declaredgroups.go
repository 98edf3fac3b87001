package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

const (
	// declareEvery is how often disks are scanned for groups while the VolumeGroups do not change.
	declareEvery = time.Minute
	// A pass over the VolumeGroups may take this fraction of a round's time: even if a disk hangs, there must
	// be time to observe the volumes.
	declareShare = 2
)

// GroupMaker creates volume groups: *node.Engine, in production.
type GroupMaker interface {
	// AttachLoops attaches the loop devices of groups, for example after a boot.
	AttachLoops(ctx context.Context) error
	// MakeDeclared creates and extends the groups that are declared for this node. Before it changes anything
	// for a group, it calls confirm in the caller's goroutine.
	MakeDeclared(ctx context.Context, all []volumegroup.Declaration, confirm func(context.Context, volumegroup.Declaration) error) ([]volumegroup.Outcome, error)
}

// declarations watches the VolumeGroups, and remembers their outcomes on this node. All but its watch belongs
// to the goroutine of the rounds.
type declarations struct {
	watch cache.SharedIndexInformer
	seen  string // versionsOf the VolumeGroups at the last pass
	at    time.Time
	known bool // groups is a result of this process
	// groups are the outcomes of the VolumeGroups that select this node.
	groups []flexlvmv1.DeclaredGroup
	// reported are the outcomes in the NodeStorage at the beginning of the last pass.
	reported []flexlvmv1.DeclaredGroup
}

// newDeclarations returns nil if no groups are to be created.
func newDeclarations(ctx context.Context, d *Daemon) (*declarations, error) {
	if d.cfg.Groups == nil || d.cfg.DryRun {
		return nil, nil
	}
	out := &declarations{watch: cache.NewSharedIndexInformer(d.api.WatchVolumeGroups(), &flexlvmv1.VolumeGroup{}, 0, cache.Indexers{})}
	if err := logInterruptions(ctx, out.watch, "VolumeGroups"); err != nil {
		return nil, err
	}
	_, err := out.watch.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { d.kick() }, UpdateFunc: func(any, any) { d.kick() }, DeleteFunc: func(any) { d.kick() },
	})
	return out, err
}

func (s *declarations) run(ctx context.Context) {
	if s != nil {
		s.watch.RunWithContext(ctx)
	}
}

// report returns the outcomes of the groups, or those that an earlier process has reported.
func (s *declarations) report(was []flexlvmv1.DeclaredGroup) []flexlvmv1.DeclaredGroup {
	if s == nil || !s.known {
		return was
	}
	return s.groups
}

// shown returns the VolumeGroups that the watch shows.
func (s *declarations) shown() []flexlvmv1.VolumeGroup {
	var all []flexlvmv1.VolumeGroup
	for _, o := range s.watch.GetStore().List() {
		all = append(all, *o.(*flexlvmv1.VolumeGroup))
	}
	return all
}

// versionsOf returns a string that identifies the versions of a set of VolumeGroups.
func versionsOf(all []flexlvmv1.VolumeGroup) string {
	var out []string
	for i := range all {
		out = append(out, fmt.Sprintf("%s %s %s", all[i].Name, all[i].UID, all[i].ResourceVersion))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// attachLoops needs no API server, because pods start without one. A failure does not stop the round.
func (d *Daemon) attachLoops(ctx context.Context) {
	if d.cfg.Groups == nil || d.cfg.DryRun {
		return
	}
	err := d.cfg.Groups.AttachLoops(ctx)
	if err == nil {
		d.dedupe.end("loops")
		return
	}
	if d.dedupe.note("loops", err.Error(), d.cfg.Now()) {
		klog.FromContext(ctx).Error(err, "A loop device cannot be attached; it is retried")
		d.events.onNode(warning, "LoopDeviceFailed", fmt.Sprintf("a loop device cannot be attached: %v; it is retried", err))
	}
}

// declare creates the groups that are declared for this node. Failures are reported and do not stop the round,
// because existing volumes do not depend on it.
func (d *Daemon) declare(ctx context.Context) {
	s := d.declared
	if s == nil || !s.watch.HasSynced() || !d.discoverer.firstScanOver() {
		return
	}
	shown, now := s.shown(), d.cfg.Now()
	seen := versionsOf(shown)
	if s.known && seen == s.seen && now.Sub(s.at) < declareEvery && !now.Before(s.at) {
		return
	}
	if len(shown) > 0 && !d.discoverer.ensureVolumeWatch() {
		return
	}
	s.seen, s.at = seen, now
	ctx, cancel := context.WithTimeout(ctx, d.roundTime/declareShare)
	defer cancel()
	objects, all, err := d.declaredHere(ctx, shown)
	if err != nil {
		d.announceDeclareFailed(ctx, err)
		return
	}
	var outcomes []volumegroup.Outcome
	if len(all) > 0 {
		outcomes, err = d.makeDeclared(ctx, seen, all)
	}
	if err != nil {
		d.announceDeclareFailed(ctx, err)
		outcomes = nil
		for _, one := range all {
			outcomes = append(outcomes, volumegroup.Outcome{Name: one.Name, Group: one.Group, State: volumegroup.Refused, Message: err.Error()})
		}
	} else {
		d.dedupe.end("declare")
	}
	s.known, s.groups = true, nil
	for _, o := range outcomes[:min(len(outcomes), maxDeclared)] {
		s.groups = append(s.groups, s.keepEvidence(declaredStatus(o)))
	}
	if err == nil {
		d.announceDeclared(ctx, objects, outcomes)
	}
}

// makeDeclared creates the groups. From the confirmation of the first one until all are created, the discoverer
// is paused: it would offer a disk that is about to become part of a group.
func (d *Daemon) makeDeclared(ctx context.Context, seen string, all []volumegroup.Declaration) ([]volumegroup.Outcome, error) {
	pause := &discoveryPause{of: d.discoverer}
	defer pause.end()
	return d.cfg.Groups.MakeDeclared(ctx, all, func(ctx context.Context, one volumegroup.Declaration) error {
		if err := pause.begin(ctx, one); err != nil {
			d.declared.seen = "" // start another pass
			return err
		}
		return d.confirmDeclared(ctx, seen, one.Name)
	})
}

// declaredHere returns the VolumeGroups that select this node, in the order of their
// names, and what they declare.
func (d *Daemon) declaredHere(ctx context.Context, shown []flexlvmv1.VolumeGroup) (map[string]*flexlvmv1.VolumeGroup, []volumegroup.Declaration, error) {
	if len(shown) == 0 {
		return nil, nil, nil
	}
	self, err := d.api.NodeLabels(ctx, d.cfg.Node)
	if err != nil {
		return nil, nil, err
	}
	objects := map[string]*flexlvmv1.VolumeGroup{}
	var all []volumegroup.Declaration
	discovered := d.discoverer.disksSeen()
	for i := range shown {
		o := &shown[i]
		if !selects(o, self) {
			continue
		}
		objects[o.Name] = o
		one := declarationOf(o)
		one.Discovered = discovered
		all = append(all, one)
	}
	if err := d.markReported(ctx, all); err != nil {
		return nil, nil, err
	}
	slices.SortFunc(all, func(a, b volumegroup.Declaration) int { return strings.Compare(a.Name, b.Name) })
	return objects, all, nil
}

// markReported marks the declarations whose groups this node has reported as created. The node's own records
// may be lost with its disks.
func (d *Daemon) markReported(ctx context.Context, all []volumegroup.Declaration) error {
	if len(all) == 0 {
		return nil
	}
	own, err := d.ensureNodeStorage(ctx)
	if err != nil {
		return err
	}
	d.declared.reported = own.Status.DeclaredGroups
	for i := range all {
		was := d.declared.reportOf(all[i].Name, string(all[i].Group))
		all[i].Reported = was.State == flexlvmv1.DeclaredMade || len(was.Disks) > 0
	}
	return nil
}

// reportOf returns what the NodeStorage says about a group; zero if it says nothing.
func (s *declarations) reportOf(name, group string) flexlvmv1.DeclaredGroup {
	at := slices.IndexFunc(s.reported, func(g flexlvmv1.DeclaredGroup) bool { return g.Name == name && g.Group == group })
	if at < 0 {
		return flexlvmv1.DeclaredGroup{}
	}
	return s.reported[at]
}

// formerMember is the reason of a disk that is still reported although the last pass did not find its group, or failed.
const formerMember = "was in the group when that was last seen"

// keepEvidence keeps the disks of a group that was created and is not there any more in the report, because after the
// loss of the node's records markReported knows only from them that the group was created.
func (s *declarations) keepEvidence(g flexlvmv1.DeclaredGroup) flexlvmv1.DeclaredGroup {
	if g.State == flexlvmv1.DeclaredMade || len(g.Disks) > 0 {
		return g
	}
	was := s.reportOf(g.Name, g.Group)
	if g.Disks = slices.Clone(was.Disks); was.State == flexlvmv1.DeclaredMade && len(g.Disks) == 0 {
		g.Disks = []flexlvmv1.DeclaredDisk{{}} // its ID is not known
	}
	for i := range g.Disks {
		g.Disks[i].Reason = formerMember
	}
	return g
}

// selects reports whether a VolumeGroup selects a node with these labels.
func selects(o *flexlvmv1.VolumeGroup, node map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(&o.Spec.NodeSelector)
	// The API server rejects an empty selector.
	return err == nil && !selector.Empty() && o.DeletionTimestamp == nil && selector.Matches(labels.Set(node))
}

func declarationOf(o *flexlvmv1.VolumeGroup) volumegroup.Declaration {
	out := volumegroup.Declaration{Name: o.Name, Group: volume.Group(o.Spec.Name), Extend: o.Spec.Extend}
	for _, s := range o.Spec.Disks {
		out.Selectors = append(out.Selectors, volumegroup.Selector{
			ByID: s.ByID, Path: s.Path, MinSize: sizeOf(s.MinSize), MaxSize: sizeOf(s.MaxSize), Rotational: s.Rotational,
		})
	}
	if l := o.Spec.Loop; l != nil {
		out.Loop = &volumegroup.Loop{File: l.File, Size: sizeOf(l.Size), ForTests: l.ForTests}
	}
	if p := o.Spec.ThinPool; p != nil {
		out.ThinPool, out.ThinSize = volume.Name(p.Name), sizeOf(p.Size)
	}
	for _, entry := range strings.Split(o.Annotations[flexlvmv1.AnnotationTakeAgain], ",") {
		if entry = strings.TrimSpace(entry); entry != "" {
			out.ReuseDisks = append(out.ReuseDisks, entry)
		}
	}
	return out
}

// sizeOf parses a size. It returns 0 for an empty string, and -1, which is refused, for an invalid one.
func sizeOf(s flexlvmv1.DiskSize) volume.Bytes {
	if s == "" {
		return 0
	}
	q, err := resource.ParseQuantity(string(s))
	if err != nil {
		return -1
	}
	return volume.Bytes(q.Value())
}

// confirmDeclared confirms with the API server that no VolumeGroup has changed, gone or been added, which might
// want the same disks, and that the one of this name still selects this node: the scan of the disks takes a
// while.
func (d *Daemon) confirmDeclared(ctx context.Context, seen, name string) error {
	now, err := d.api.VolumeGroups(ctx)
	if err != nil {
		return err
	}
	if versionsOf(now) != seen {
		d.declared.seen = "" // start another pass, whatever the watch shows then
		return errors.New("the VolumeGroups have changed meanwhile; they are examined again")
	}
	self, err := d.api.NodeLabels(ctx, d.cfg.Node)
	if err != nil {
		return err
	}
	if at := slices.IndexFunc(now, func(o flexlvmv1.VolumeGroup) bool { return o.Name == name }); at < 0 || !selects(&now[at], self) {
		return fmt.Errorf("VolumeGroup %s no longer selects this node", name)
	}
	return nil
}

// Bounds of the outcomes in the NodeStorage; api/v1 has the same bounds.
const (
	maxDeclared, maxMembers, maxRefused = 16, 64, 32
	maxReason                           = 300
)

func declaredStatus(o volumegroup.Outcome) flexlvmv1.DeclaredGroup {
	out := flexlvmv1.DeclaredGroup{Name: o.Name, Group: string(o.Group), State: flexlvmv1.DeclaredState(o.State), Message: clip(o.Message, maxMessage)}
	for _, m := range o.Members[:min(len(o.Members), maxMembers)] {
		out.Disks = append(out.Disks, flexlvmv1.DeclaredDisk{ID: m.ID, Path: m.Path})
	}
	for _, r := range o.Refused[:min(len(o.Refused), maxRefused)] {
		out.Refused = append(out.Refused, flexlvmv1.DeclaredDisk{ID: r.ID, Path: r.Path, Reason: clip(r.Reason, maxReason)})
	}
	return out
}

func (d *Daemon) announceDeclareFailed(ctx context.Context, err error) {
	if d.dedupe.note("declare", err.Error(), d.cfg.Now()) {
		klog.FromContext(ctx).Error(err, "Declared volume groups cannot be examined; it is retried")
		d.events.onNode(warning, "VolumeGroupsFailed", fmt.Sprintf("declared volume groups cannot be examined: %v; it is retried", err))
	}
}

// announceDeclared announces created and refused groups.
func (d *Daemon) announceDeclared(ctx context.Context, objects map[string]*flexlvmv1.VolumeGroup, outcomes []volumegroup.Outcome) {
	log := klog.FromContext(ctx)
	for _, o := range outcomes {
		topic, kind, reason, text := "declared "+o.Name, normal, "VolumeGroupMade", o.Message
		switch {
		case o.State == volumegroup.Refused:
			kind, reason = warning, "VolumeGroupRefused"
			for _, r := range o.Refused {
				text += fmt.Sprintf("; %s: %s", r.Path, r.Reason)
			}
			if !d.dedupe.note(topic, text, d.cfg.Now()) {
				continue
			}
		case o.Changed:
			d.dedupe.end(topic)
			for _, m := range o.Members {
				text += fmt.Sprintf("; %s (%s)", m.Path, m.ID)
			}
		default:
			d.dedupe.end(topic)
			continue
		}
		log.Info("Declared volume group", "volumegroup", o.Name, "state", o.State, "why", text)
		d.events.onNode(kind, reason, "VolumeGroup "+o.Name+": "+text)
		d.events.onVolumeGroup(objects[o.Name], kind, reason, "node "+d.cfg.Node+": "+text)
	}
}

func (e events) onVolumeGroup(o *flexlvmv1.VolumeGroup, kind, reason, message string) {
	ref := &corev1.ObjectReference{APIVersion: flexlvmv1.GroupVersion.String(), Kind: "VolumeGroup", Name: o.Name, UID: o.UID}
	e.recorder.Event(ref, kind, reason, clip(message, maxMessage))
}
