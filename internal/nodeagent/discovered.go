package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A discoveredCase is the verdict on one path, and what it is based on.
type discoveredCase struct {
	path    string
	found   *discovery.Found
	object  *corev1.PersistentVolume
	class   discovery.Class
	of      string // version of the VolumeDiscovery
	verdict discovery.Verdict
	ending  bool // its cleaning was still running when the ledger was copied, and none is wanted any more
	// withdrawn: its PersistentVolume is to be deleted before a claim is bound to it.
	withdrawn bool
	// filesystem is what the file system on a device is called where it is mounted, if that was examined.
	filesystem string
}

// judge returns the verdicts on all paths, and the ledger that results from them.
func (s *discoverer) judge(ctx context.Context, ledger discovery.Ledger, view discoveryView, volumes map[string]*corev1.PersistentVolume, duplicates map[string]string) (discovery.Ledger, []discoveredCase) {
	cases := casesOf(view, volumes)
	s.forgetGone(volumes)
	s.holders.begin()
	seen := map[string]bool{}
	for i := range cases {
		c := &cases[i]
		id := c.id()
		c.verdict = discovery.Judge(c.found, ledger[id], volumeOf(c.object), c.cleans(), s.d.cfg.Now())
		if c.class.Name == "" {
			c.verdict = c.undeclared(ledger[id])
		}
		if why := view.unseen[c.storageClass()]; why != nil && c.found == nil {
			c.refuse(ledger[id], "it cannot be examined, so nothing is cleaned: "+why.Error())
		}
		c.refuseGrownOver(ledger)
		if v, taken := c.takenElsewhere(ledger[id], volumes); taken {
			c.verdict = v
		}
		if other := duplicates[c.path]; other != "" {
			c.refuse(ledger[id], fmt.Sprintf("PersistentVolumes %s and %s both have this path; nothing is cleaned until you delete the one that is not in use", c.object.Name, other))
		}
		if state := c.verdict.State; s.busy[id] && (state == discovery.Ready || state == discovery.Cleaned) {
			c.refuse(ledger[id], "its cleaning is about to end")
			c.verdict.State, c.ending = discovery.Cleaning, true
		}
		s.setScanPath(c.path)
		s.refuseUnofferable(ctx, c, ledger, volumes)
		s.withdrawIfNotBlank(ctx, c)
		if c.verdict.State != discovery.Cleaning {
			// Another program may use the disk now and write to the erased part, so a later erasure starts from
			// the beginning.
			c.verdict.Entry.Offset = 0
		}
		if id != "" && c.found != nil && c.found.Disk == id {
			ledger[id], seen[id] = c.verdict.Entry.WithAliases(c.found, c.verdict.State == discovery.Ready), true
		}
	}
	s.setScanPath("")
	// A disk that was not found may be in use elsewhere. Its offer is withdrawn, and its erasure starts from
	// the beginning when it is back. The same goes for the disks of a class that cannot be scanned.
	ledger.Withdraw(seen, s.busy)
	return ledger, cases
}

// casesOf returns a case for each path: those of the found disks, and those of PersistentVolumes without one.
func casesOf(view discoveryView, volumes map[string]*corev1.PersistentVolume) (cases []discoveredCase) {
	byName := map[string]discovery.Class{}
	for _, c := range view.classes {
		byName[c.Name] = c
	}
	seen := map[string]bool{}
	for i := range view.found {
		f := &view.found[i]
		seen[f.Path] = true
		cases = append(cases, discoveredCase{path: f.Path, found: f, object: volumes[f.Path], class: byName[f.Class], of: view.of})
	}
	for at, v := range volumes {
		if !seen[at] {
			class := byName[v.Spec.StorageClassName]
			if !discovers(class, at) {
				class = discovery.Class{}
			}
			cases = append(cases, discoveredCase{path: at, object: v, class: class, of: view.of})
		}
	}
	return cases
}

// discovers reports whether a class discovers what is at a path.
func discovers(c discovery.Class, at string) bool {
	matches, err := c.Matches(path.Base(at))
	return err == nil && matches && path.Dir(at) == c.Directory
}

// undeclared returns the verdict on a PersistentVolume whose path no class of this node has.
func (c *discoveredCase) undeclared(e discovery.Entry) discovery.Verdict {
	out := discovery.Verdict{State: discovery.Provided, Entry: e, Message: "no class of the VolumeDiscovery has this path on this node any longer, so nothing is cleaned"}
	if c.object.Status.Phase == corev1.VolumeReleased {
		out.State = discovery.Kept
	}
	return out
}

// refuse sets the verdict Refused. It withdraws the offer, and changes nothing else in the ledger.
func (c *discoveredCase) refuse(was discovery.Entry, why string) {
	was.Offered = false
	c.verdict = discovery.Verdict{State: discovery.Refused, Message: why, Entry: was}
}

// id returns the disk's ID in the ledger.
func (c *discoveredCase) id() string {
	if c.found != nil {
		return c.found.Disk
	}
	if c.object != nil {
		return c.object.Annotations[flexlvmv1.AnnotationDisk]
	}
	return ""
}

// cleans reports whether the class cleans disks of this kind.
func (c *discoveredCase) cleans() bool {
	if c.class.Name == "" || c.found == nil || c.object != nil && c.object.Spec.StorageClassName != c.class.Name {
		return false
	}
	if c.found.Kind == discovery.Device {
		return c.class.Device != discovery.KeepDevice
	}
	return c.class.Files
}

// volumeOf returns the relevant fields of a PersistentVolume; nil for nil.
func volumeOf(v *corev1.PersistentVolume) *discovery.Volume {
	if v == nil {
		return nil
	}
	out := &discovery.Volume{
		Name: v.Name, UID: string(v.UID), Class: v.Spec.StorageClassName, Path: path.Clean(v.Spec.Local.Path),
		Disk: v.Annotations[flexlvmv1.AnnotationDisk], Aliases: v.Annotations[flexlvmv1.AnnotationDiskAliases],
		Delete: v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete, Deleting: v.DeletionTimestamp != nil,
	}
	if ref := v.Spec.ClaimRef; ref != nil {
		out.Claim, out.ClaimUID = ref.Namespace+"/"+ref.Name, string(ref.UID)
	}
	out.Released = v.Status.Phase == corev1.VolumeReleased && out.ClaimUID != ""
	return out
}

// carryOut starts and stops cleanings, and reports the verdicts.
func (s *discoverer) carryOut(ctx context.Context, all *sync.WaitGroup, cases []discoveredCase, view discoveryView) {
	var shown []flexlvmv1.Discovered
	wanted := map[string]string{}
	for i := range cases {
		c := &cases[i]
		one := c.status()
		if c.verdict.State == discovery.Cleaning && !c.ending {
			wanted[c.found.Disk] = string(c.object.UID)
			if message := s.begin(ctx, all, *c); message != "" {
				one.Message = message
			}
		}
		s.announceCase(ctx, c, one.Message)
		if c.object != nil || c.found != nil {
			shown = append(shown, one)
		}
	}
	s.stopOthers(wanted)
	shown = view.withUnseen(shown)
	s.d.out.Metrics.discovered(shown)
	s.show(shown, view)
}

func (c *discoveredCase) status() flexlvmv1.Discovered {
	one := flexlvmv1.Discovered{Path: c.path, State: flexlvmv1.DiscoveredState(c.verdict.State), Message: clip(c.verdict.Message, maxReason), Offer: c.verdict.Entry.Offer, Withdrawn: c.withdrawn}
	if c.object != nil {
		one.StorageClassName, one.PersistentVolume, one.PersistentVolumeUID = c.object.Spec.StorageClassName, c.object.Name, string(c.object.UID)
		if ref := c.object.Spec.ClaimRef; ref != nil && c.verdict.State == discovery.Cleaned {
			one.ClaimUID = string(ref.UID)
		}
	}
	if f := c.found; f != nil {
		one.StorageClassName, one.Kind, one.Disk, one.Size = f.Class, string(f.Kind), clip(f.Disk, maxReason), quantity(volume.Bytes(f.Size))
		one.Aliases = c.names().JoinAliases()
	}
	return one
}

// announceCase announces what a person has to know about a path and its PersistentVolume.
func (s *discoverer) announceCase(ctx context.Context, c *discoveredCase, message string) {
	topic := "discovered " + c.path
	reason := ""
	switch c.verdict.State {
	case discovery.Missing:
		reason = "DiskMissing"
	case discovery.Refused:
		reason = "DiskRefused"
	case discovery.Kept:
		reason = "DiskKept"
	}
	if reason == "" || c.object == nil && c.verdict.State != discovery.Refused {
		s.d.dedupe.end(topic)
		return
	}
	if !s.d.dedupe.note(topic, message, s.d.cfg.Now()) {
		return
	}
	klog.FromContext(ctx).Info("Discovered", "path", c.path, "state", c.verdict.State, "why", message)
	if c.object != nil {
		kind := warning
		if c.verdict.State == discovery.Kept {
			kind = normal
		}
		s.d.events.onVolume(c.object, kind, reason, message)
		s.d.events.onNode(kind, reason, c.path+": "+message)
	}
}

// begin starts a cleaning unless it is running, and returns a message about its progress.
func (s *discoverer) begin(ctx context.Context, all *sync.WaitGroup, c discoveredCase) string {
	id := c.found.Disk
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errEnding.Error()
	}
	if job := s.jobs[id]; job != nil {
		if c.found.Kind == discovery.Device {
			return fmt.Sprintf("erased up to byte %d of %d", job.offset, c.found.Size)
		}
		return "its files are being deleted"
	}
	if s.retries.waits(id, s.d.cfg.Now()) {
		return s.failed[id]
	}
	if len(s.jobs) >= maxCleanings {
		return fmt.Sprintf("waits: %d others are being cleaned", len(s.jobs))
	}
	ctx, stop := context.WithCancelCause(ctx)
	job := &cleaning{volume: string(c.object.UID), object: c.object, confirmed: s.d.cfg.Now(), stop: stop, offset: s.ledger[id].Offset}
	s.jobs[id] = job
	all.Go(func() {
		defer stop(nil)
		err := s.clean(ctx, c, job)
		s.ended(ctx, c, err)
	})
	return ""
}

// errVolumeChanged: a PersistentVolume differs from what the watch has shown. The watch may never show the
// state in between.
var errVolumeChanged = errors.New("its PersistentVolume has changed meanwhile and is examined again")

// clean cleans a disk, if the API server confirms that it may, and records that in the ledger.
func (s *discoverer) clean(ctx context.Context, c discoveredCase, job *cleaning) error {
	anew := func(err error) error {
		return errors.Join(err, s.update(c.found.Disk, func(e *discovery.Entry) { e.Offset = 0 }))
	}
	if err := s.confirm(ctx, c); errors.Is(err, errVolumeChanged) {
		return anew(err)
	} else if err != nil {
		return err
	}
	s.mu.Lock()
	entry := s.ledger[c.found.Disk]
	s.mu.Unlock()
	if entry.Volume != job.volume {
		return errors.New("this node has no record that the disk was offered by this PersistentVolume")
	}
	if entry.CleanedAfter(job.volume) {
		return nil // an earlier job finished while this one was decided
	}
	if entry.Erasure != c.class.Device {
		entry.Offset, entry.Erasure = 0, c.class.Device
		if err := s.update(c.found.Disk, func(e *discovery.Entry) { *e = entry }); err != nil {
			return err
		}
	}
	klog.FromContext(ctx).Info("A released disk is being cleaned", "path", c.path, "persistentvolume", c.object.Name, "from", entry.Offset)
	err := s.disks.Clean(ctx, *c.found, c.class, entry, func(offset int64) error {
		return s.update(c.found.Disk, func(e *discovery.Entry) { e.Offset, job.offset = offset, offset })
	})
	if err != nil {
		// If another program used the disk, or the PersistentVolume has changed, perhaps to keep its data,
		// the erased part may have been written to.
		if ctx.Err() == nil || errors.Is(context.Cause(ctx), errVolumeChanged) {
			return anew(err)
		}
		return err
	}
	return s.update(c.found.Disk, func(e *discovery.Entry) { *e = e.Clean() })
}

// update changes the ledger's entry of a disk that is being cleaned.
func (s *discoverer) update(id string, change func(*discovery.Entry)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(s.ledger)
	e := next[id]
	change(&e)
	next[id] = e
	return s.replaceLedger(next)
}

// confirm confirms with the API server that a PersistentVolume is as it was judged, its claim is gone, and its
// class still cleans. The VolumeDiscovery must be the one that was scanned for: with another nodeSelector, the class may
// have left this node.
func (s *discoverer) confirm(ctx context.Context, c discoveredCase) error {
	now, err := s.d.api.Volume(ctx, c.object.Name)
	if err != nil {
		return err
	}
	if !sameDiscovered(now, c.object) {
		return errVolumeChanged
	}
	if err := s.checkOnlyVolume(ctx, now, c.found); err != nil {
		return err
	}
	gone, err := s.claimGone(ctx, now.Spec.ClaimRef)
	if err != nil {
		return err
	}
	if !gone {
		return fmt.Errorf("its claim %s is still there", volumeOf(now).Claim)
	}
	spec, err := s.d.api.VolumeDiscovery(ctx)
	if err != nil {
		return err
	}
	for i := range spec.Spec.Classes {
		if one := classOf(&spec.Spec.Classes[i]); one == c.class && spec.Version() == c.of && spec.DeletionTimestamp == nil {
			return nil
		}
	}
	return errors.New("its class has changed meanwhile and is examined again")
}

// ended records and reports the outcome of a cleaning.
func (s *discoverer) ended(ctx context.Context, c discoveredCase, err error) {
	id, now := c.found.Disk, s.d.cfg.Now()
	s.mu.Lock()
	delete(s.jobs, id)
	delete(s.failed, id)
	switch {
	case err == nil:
		s.retries.clear(id)
	case !errors.Is(err, context.Canceled):
		s.failed[id] = clip("it is not cleaned, and it is retried: "+err.Error(), maxReason)
		s.retries.add(id, now, err.Error())
	}
	s.mu.Unlock()
	log := klog.FromContext(ctx)
	switch {
	case err == nil:
		log.Info("A released disk is clean", "path", c.path, "persistentvolume", c.object.Name)
		s.d.dedupe.end("clean " + id)
		s.d.events.onNode(normal, "DiskCleaned", fmt.Sprintf("%s is clean after PersistentVolume %s", c.path, c.object.Name))
	case errors.Is(err, context.Canceled):
		log.Info("The cleaning of a disk is interrupted and will resume later", "path", c.path)
	case s.d.dedupe.note("clean "+id, err.Error(), now):
		log.Error(err, "A released disk is not cleaned; it is retried", "path", c.path, "persistentvolume", c.object.Name)
		s.d.events.onVolume(c.object, warning, "CleaningFailed", err.Error()+"; it is retried")
	}
	s.kick()
}

// stopOthers stops the cleanings that are not wanted any more.
func (s *discoverer) stopOthers(wanted map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, job := range s.jobs {
		if wanted[id] != job.volume {
			job.stop(nil)
		}
	}
}
