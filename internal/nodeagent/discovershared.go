package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
	"github.com/flexlvm/flexlvm/internal/diskid"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// namesOf returns what the disk of a PersistentVolume is called.
func namesOf(v *corev1.PersistentVolume) diskid.Names {
	return diskid.ParseNames(v.Annotations[flexlvmv1.AnnotationDisk], v.Annotations[flexlvmv1.AnnotationDiskAliases])
}

// names returns what the found disk is called. The file system's name is first, because an annotation may have no room
// for all.
func (c *discoveredCase) names() diskid.Names {
	out := c.found.Names()
	if c.filesystem != "" {
		out.Aliases = append([]string{c.filesystem}, out.Aliases...)
	}
	return out
}

// refuseGrownOver refuses a partition that was extended over one with the data of another PersistentVolume. Its former size
// stays recorded, so it is not cleaned while it has this one.
func (c *discoveredCase) refuseGrownOver(ledger discovery.Ledger) {
	if !c.verdict.Grown {
		return
	}
	if other := ledger.GrownOver(c.found); other != "" {
		noted, was := c.verdict.Entry, ledger[c.id()]
		noted.Start, noted.Size = was.Start, was.Size
		c.refuse(noted, fmt.Sprintf("the partition was extended over %s, which had a PersistentVolume and was not cleaned since, so nothing is cleaned: delete PersistentVolume %s once nobody needs the data", other, c.object.Name))
	}
}

// takenElsewhere returns the verdict on a disk without a PersistentVolume, if one of another path of this node
// was created from the same disk or an overlapping one, perhaps under another name.
func (c *discoveredCase) takenElsewhere(was discovery.Entry, volumes map[string]*corev1.PersistentVolume) (out discovery.Verdict, taken bool) {
	if c.object != nil || c.found == nil {
		return out, false
	}
	names := c.names()
	for at, v := range volumes {
		if names.Overlap(namesOf(v)) {
			was.Offered = false
			return discovery.Verdict{State: discovery.Refused, Entry: was, Message: fmt.Sprintf("PersistentVolume %s has this disk at %s; give it that path back", v.Name, at)}, true
		}
	}
	return out, false
}

// checkOnlyVolume fails if another PersistentVolume, flexlvm's or not, has the disk on any node, or on this node has
// its path or one above or below it, or one that leads there. found is its disk.
func (s *discoverer) checkOnlyVolume(ctx context.Context, v *corev1.PersistentVolume, found *discovery.Found) error {
	if found.AliasesUnknown != nil {
		return fmt.Errorf("cannot determine all disks that it is on, one of which may have another PersistentVolume: %w", found.AliasesUnknown)
	}
	names := namesOf(v)
	names.Aliases = append(names.Aliases, found.Aliases...)
	var foreign []foreignVolume
	others, err := s.d.api.VolumesWithoutNodeLabel(ctx, func(other *corev1.PersistentVolume) bool {
		if other.Name == v.Name || persistentvolume.NodePath(other) == "" {
			return false
		}
		if f, is := foreignOf(other); is && persistentvolume.ShareNode(other, v) {
			foreign = append(foreign, f)
		}
		overlaps := names.OverlapElsewhere
		if other.Labels[flexlvmv1.LabelDiscoveredOn] == v.Labels[flexlvmv1.LabelDiscoveredOn] {
			overlaps = names.Overlap
		}
		return overlaps(namesOf(other)) || persistentvolume.SharePath(other, v)
	})
	if err != nil {
		return err
	}
	if len(others) > 0 {
		return fmt.Errorf("PersistentVolume %s also names this disk (%s); nothing is cleaned until one of them is deleted", others[0].Name, persistentvolume.NodePath(&others[0]))
	}
	return checkPlaces(found, foreign, s.resolve(ctx, foreign))
}

// firstScanTimeout is how long groups wait for the first scan. Then they report that they wait.
const firstScanTimeout = time.Minute

// firstScanOver reports whether the first scan has ended, failed, or had its time.
func (s *discoverer) firstScanOver() bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known || s.failure != "" || s.d.cfg.Now().Sub(s.begun) > firstScanTimeout
}

// A discoveryPause keeps the discoverer from scanning disks while volume groups are created on them.
type discoveryPause struct {
	of   *discoverer // nil if nothing is discovered
	held bool        // it holds of.scanning
}

// begin fails if a disk of a group may become a discovered volume, or has become one since the group was
// decided. The first begin for a group on disks locks out scans until end. It fails instead of waiting for a
// scan, because the caller holds the engine's lock and tries again.
func (p *discoveryPause) begin(ctx context.Context, one volumegroup.Declaration) error {
	s := p.of
	if s == nil {
		return nil
	}
	disks := one.Loop == nil // a loop device is created for its group alone
	if disks && !p.held {
		if !s.scanning.TryLock() {
			return cmp.Or(s.hung(), errors.New("the disks are being examined for the VolumeDiscovery; it is retried"))
		}
		p.held = true
	}
	if !s.disksSeen().Equal(one.Discovered) {
		return errors.New("the disks of the VolumeDiscovery have changed meanwhile; they are examined again")
	}
	if !disks {
		return nil
	}
	return s.checkVersionCurrent(ctx)
}

func (p *discoveryPause) end() {
	if p.held {
		p.of.scanning.Unlock()
	}
}

// checkVersionCurrent fails if the last scan followed another VolumeDiscovery than the API server has: any disk may
// belong to a class of the new one.
func (s *discoverer) checkVersionCurrent(ctx context.Context) error {
	now, err := s.d.api.VolumeDiscovery(ctx)
	if apierrors.IsNotFound(err) || err == nil && now.DeletionTimestamp != nil {
		return nil
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scannedVersion != now.Version() {
		return errors.New("the VolumeDiscovery has changed and the disks must be examined first; it is retried")
	}
	return nil
}

// disksSeen returns the disks that are or were discovered volumes, on which no group is created.
func (s *discoverer) disksSeen() volumegroup.Discovered {
	if s == nil {
		return volumegroup.Discovered{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		return volumegroup.Discovered{Unknown: cmp.Or(s.failure, "the node daemon has not examined the disks yet")}
	}
	if !s.volumes.HasSynced() {
		return volumegroup.Discovered{Unknown: errVolumesUnread.Error()}
	}
	if s.unseen != "" { // a disk of the class may be blank and become a volume
		return volumegroup.Discovered{Unknown: s.unseen}
	}
	ledger, err := s.ledger, error(nil)
	if ledger == nil {
		if ledger, err = discovery.ReadLedger(s.file); err != nil {
			return volumegroup.Discovered{Unknown: err.Error()}
		}
	}
	out := volumegroup.Discovered{Disks: map[string]bool{}}
	for id := range ledger {
		out.Disks[id] = s.failure != ""
	}
	for id := range s.ids {
		out.Disks[id] = true
	}
	for _, o := range s.volumes.GetStore().List() {
		if id := o.(*corev1.PersistentVolume).Annotations[flexlvmv1.AnnotationDisk]; id != "" {
			out.Disks[id] = true
		}
	}
	return out
}
