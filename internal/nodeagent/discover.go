package nodeagent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
)

const (
	// discoverEvery is the interval of scans without a change, and discoverPause the least time between two
	// scans, because pods mount all the time.
	discoverEvery, discoverPause = time.Minute, 2 * time.Second
	// maxCleanings is how many disks are cleaned at the same time; they share one rate limit.
	maxCleanings = 4
	// maxDiscovered is how many disks the NodeStorage shows; api/v1 has the same bound.
	maxDiscovered = 256
)

// Disks finds and cleans the disks and file systems of this machine: discovery.Machine, in production.
type Disks interface {
	// Find returns the disks in the directories of the classes, and by the name of a class why it cannot be
	// scanned.
	Find(ctx context.Context, classes []discovery.Class) ([]discovery.Found, map[string]error, error)
	// CheckOfferable fails if a disk is in use, or holds data that kubelet would format as a volume of the class. It
	// returns what the file system on a device is called where it is mounted; empty if there is none.
	CheckOfferable(ctx context.Context, f discovery.Found, of discovery.Class, e discovery.Entry) (filesystem string, err error)
	// CheckEmpty fails unless a disk is empty, and new files on it inherit what owner records, if that is known.
	CheckEmpty(f discovery.Found, owner *discovery.Owner) error
	// Owner returns the owner, the mode and the attributes of a disk's top directory; nil for a device.
	Owner(f discovery.Found) (*discovery.Owner, error)
	// Resolve returns where the paths of other programs' volumes lead, in the same order.
	Resolve(ctx context.Context, paths []string) []discovery.Place
	// Clean cleans a disk as its class requires, starting at the entry's offset, and reports its progress.
	Clean(ctx context.Context, f discovery.Found, how discovery.Class, e discovery.Entry, progress func(int64) error) error
}

// discoverer finds the file systems and disks of the node that are to become volumes, reports in the
// NodeStorage which are ready, and cleans the released ones. It writes no PersistentVolume.
type discoverer struct {
	d             *Daemon
	disks         Disks
	file          string // of the ledger
	spec          cache.SharedIndexInformer
	volumes       cache.SharedIndexInformer
	volumesNeeded chan struct{} // closed once volumes is needed
	kicks         chan struct{}

	begun time.Time
	seen  seenNode // belongs to the goroutine of the scans

	// scanning is held by each scan, and while a group is created on disks that no scan may offer meanwhile. It
	// must not be locked while mu is held.
	scanning sync.Mutex

	mu              sync.Mutex
	volumesNeededAt time.Time // when volumes was first needed; zero: never
	current         currentScan
	closed          bool   // the daemon stops: a scan that still runs writes and starts nothing any more
	known           bool   // shown is a result of this process
	failure         string // why the last scan failed; empty if it succeeded
	shown           []flexlvmv1.Discovered
	unseen          string          // why the last scan left out classes
	ids             map[string]bool // all disks that were found, even if shown is truncated
	of              string          // version of the VolumeDiscovery that shown follows; empty if nothing is shown
	scannedVersion  string          // version of the VolumeDiscovery that the last scan followed
	ledger          discovery.Ledger
	jobs            map[string]*cleaning   // by disk
	failed          map[string]string      // why the last cleaning of a disk failed
	departed        map[string][]departure // by disk, since the last scan
	// busy are the disks that were being cleaned when the ledger was last copied. Only their cleanings write
	// their entries.
	busy    map[string]bool
	retries *backoff
	// blank has the UIDs of PersistentVolumes without a claim whose device was found to be blank.
	blank map[string]bool
	// holders are the PersistentVolumes of all nodes. free is when a disk, by its ID, was last found to have
	// none elsewhere.
	holders holders
	free    map[string]time.Time
}

// A cleaning runs concurrently with the rounds.
type cleaning struct {
	volume    string                   // UID of its PersistentVolume
	object    *corev1.PersistentVolume // as it was judged
	confirmed time.Time                // when it was last confirmed with the API server
	stop      context.CancelCauseFunc
	offset    int64
}

// newDiscoverer returns nil if nothing is to be discovered.
func newDiscoverer(ctx context.Context, d *Daemon) (*discoverer, error) {
	if d.cfg.Disks == nil || d.cfg.DryRun {
		return nil, nil
	}
	s := &discoverer{
		d: d, disks: d.cfg.Disks, file: d.cfg.DiscoveredFile, volumesNeeded: make(chan struct{}), kicks: make(chan struct{}, 1),
		spec:    cache.NewSharedIndexInformer(d.api.WatchVolumeDiscoveries(), &flexlvmv1.VolumeDiscovery{}, 0, cache.Indexers{}),
		volumes: cache.NewSharedIndexInformer(d.api.WatchDiscovered(d.cfg.Node), &corev1.PersistentVolume{}, 0, cache.Indexers{}),
		jobs:    map[string]*cleaning{}, failed: map[string]string{}, departed: map[string][]departure{}, retries: newBackoff(5*time.Second, 5*time.Minute),
		blank: map[string]bool{}, free: map[string]time.Time{}, begun: d.cfg.Now(),
	}
	return s, s.handleChanges(ctx)
}

func (s *discoverer) kick() { notify(s.kicks) }

// report returns the results of the last scan, or those that an earlier process has reported. While scans fail,
// no result allows a PersistentVolume to be created or deleted.
func (s *discoverer) report(was flexlvmv1.NodeStorageStatus) (all []flexlvmv1.Discovered, of string) {
	if s == nil {
		return was.Discovered, was.DiscoveredFrom
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.known && s.failure == "":
		return s.shown, s.of
	case s.known:
		return withheld(s.shown, "it cannot be examined: "+s.failure), s.of
	}
	return withheld(was.Discovered, cmp.Or(s.failure, "the node daemon has just started and has not examined it yet")), was.DiscoveredFrom
}

// withheld returns results without those that the provisioner acts on.
func withheld(all []flexlvmv1.Discovered, why string) []flexlvmv1.Discovered {
	out := slices.Clone(all)
	for i := range out {
		if one := &out[i]; one.State == flexlvmv1.DiscoveredReady || one.State == flexlvmv1.DiscoveredCleaned || one.Withdrawn {
			one.State, one.Message, one.Withdrawn = flexlvmv1.DiscoveredRefused, clip(why, maxReason), false
		}
	}
	return out
}

// fail records a failed scan, and stops all cleanings, because they may not be wanted any more.
func (s *discoverer) fail(ctx context.Context, err error) {
	s.stopOthers(nil)
	s.mu.Lock()
	news := s.failure != err.Error()
	s.failure = err.Error()
	s.mu.Unlock()
	if news {
		s.d.kick()
	}
	s.announceFailed(ctx, err)
}

// run scans until ctx ends, and returns when all cleanings have stopped.
func (s *discoverer) run(ctx context.Context) {
	if s == nil {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { s.spec.RunWithContext(ctx) })
	all.Go(func() { s.followVolumes(ctx) })
	if s.d.cfg.Mounts != nil {
		all.Go(func() { _ = s.d.cfg.Mounts(ctx, s.kick) }) // if it fails, there is still a scan each minute
	}
	if !cache.WaitForCacheSync(ctx.Done(), s.spec.HasSynced, s.d.watches.storage.HasSynced) {
		return
	}
	go s.scanLoop(ctx, &all) // not awaited: a scan of a hung disk does not end
	s.superviseScans(ctx)
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
}

// scanLoop scans until ctx ends.
func (s *discoverer) scanLoop(ctx context.Context, all *sync.WaitGroup) {
	for s.awaitVolumes(ctx) {
		if err := s.scan(ctx, all); err != nil && ctx.Err() == nil {
			s.fail(ctx, err)
		} else {
			s.d.dedupe.end("discover")
		}
		s.await(ctx)
	}
}

// await waits until the next scan is due.
func (s *discoverer) await(ctx context.Context) {
	next := wait.Jitter(discoverEvery, spread)
	if at := s.retries.next(s.d.cfg.Now()); !at.IsZero() {
		next = min(next, max(at.Sub(s.d.cfg.Now()), 0))
	}
	minPause, maxPause := time.NewTimer(discoverPause), time.NewTimer(next)
	defer minPause.Stop()
	defer maxPause.Stop()
	select {
	case <-ctx.Done():
	case <-s.kicks:
	case <-maxPause.C:
	}
	select {
	case <-ctx.Done():
	case <-minPause.C:
	}
}

func (s *discoverer) announceFailed(ctx context.Context, err error) {
	if s.d.dedupe.note("discover", err.Error(), s.d.cfg.Now()) {
		klog.FromContext(ctx).Error(err, "Existing file systems and disks cannot be examined; it is retried")
		s.d.events.onNode(warning, "DiscoveryFailed", fmt.Sprintf("existing file systems and disks cannot be examined: %v; it is retried", err))
	}
}

// scan scans, judges, saves the ledger, and only then reports.
func (s *discoverer) scan(ctx context.Context, all *sync.WaitGroup) error {
	s.scanning.Lock()
	defer s.scanning.Unlock()
	s.setScan(currentScan{began: s.d.cfg.Now()})
	defer s.setScan(currentScan{})
	spec := s.volumeDiscovery()
	if spec != nil && !s.volumes.HasSynced() { // it is new
		return errVolumesUnread
	}
	volumes, duplicates := s.persistentVolumes()
	view, err := s.view(ctx, spec, volumes)
	if err != nil {
		return err
	}
	ledger, err := s.copyLedger()
	if err != nil {
		return err
	}
	recorded := s.recordDepartures(ledger)
	next, cases := s.judge(ctx, ledger, view, volumes, duplicates)
	if err := s.hung(); err != nil {
		return err // its results may be outdated
	}
	if err := s.saveLedger(next); err != nil {
		return err
	}
	s.dropRecorded(recorded)
	s.announceUnseen(ctx, view)
	s.carryOut(ctx, all, cases, view)
	return nil
}

// volumeDiscovery returns the VolumeDiscovery from the watch; nil if there is none.
func (s *discoverer) volumeDiscovery() *flexlvmv1.VolumeDiscovery {
	for _, o := range s.spec.GetStore().List() {
		if one := o.(*flexlvmv1.VolumeDiscovery); one.Name == flexlvmv1.VolumeDiscoveryName && one.DeletionTimestamp == nil {
			return one
		}
	}
	return nil
}

// persistentVolumes returns this node's PersistentVolumes by path. If a path has two, duplicates names the other.
func (s *discoverer) persistentVolumes() (all map[string]*corev1.PersistentVolume, duplicates map[string]string) {
	all, duplicates = map[string]*corev1.PersistentVolume{}, map[string]string{}
	for _, o := range s.volumes.GetStore().List() {
		v := o.(*corev1.PersistentVolume)
		if v.Spec.Local == nil {
			continue
		}
		at := path.Clean(v.Spec.Local.Path)
		if other := all[at]; other != nil {
			if other.Name < v.Name {
				v, other = other, v
			}
			duplicates[at] = other.Name
		}
		all[at] = v
	}
	return all, duplicates
}

// copyLedger returns a copy of the ledger.
func (s *discoverer) copyLedger() (discovery.Ledger, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger == nil {
		read, err := discovery.ReadLedger(s.file)
		if err != nil {
			return nil, err
		}
		s.ledger = read
	}
	s.busy = map[string]bool{}
	for id := range s.jobs {
		s.busy[id] = true
	}
	return maps.Clone(s.ledger), nil
}

// saveLedger saves next as the ledger. The entries of disks that were being cleaned when the ledger was
// read stay as saved, because the cleanings write those themselves.
func (s *discoverer) saveLedger(next discovery.Ledger) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errEnding
	}
	merged := maps.Clone(next)
	for id := range s.busy {
		merged[id] = s.ledger[id]
	}
	return s.replaceLedger(merged)
}

// replaceLedger replaces the ledger. The caller holds mu.
func (s *discoverer) replaceLedger(next discovery.Ledger) error {
	if maps.EqualFunc(next, s.ledger, discovery.Entry.Equal) {
		return nil
	}
	if err := next.Write(s.file); err != nil {
		return err
	}
	s.ledger = next
	return nil
}

// show sets the results that the NodeStorage reports, and the VolumeDiscovery that they follow.
func (s *discoverer) show(all []flexlvmv1.Discovered, view discoveryView) {
	slices.SortFunc(all, func(a, b flexlvmv1.Discovered) int { return cmp.Compare(a.Path, b.Path) })
	ids := map[string]bool{}
	for _, one := range all {
		if one.Disk != "" {
			ids[one.Disk] = true
		}
	}
	scannedVersion := view.of
	if len(all) == 0 {
		view.of = "" // so that a node without results does not write at each change
	}
	if len(all) > maxDiscovered {
		all = all[:maxDiscovered]
	}
	s.mu.Lock()
	same := s.known && s.failure == "" && s.of == view.of && slices.EqualFunc(s.shown, all, func(a, b flexlvmv1.Discovered) bool {
		sizes := a.Size.Cmp(b.Size) == 0
		a.Size = b.Size
		return sizes && a == b
	})
	s.known, s.shown, s.of, s.failure = true, all, view.of, ""
	s.unseen, s.ids, s.scannedVersion = view.whyUnseen(), ids, scannedVersion
	s.mu.Unlock()
	if !same {
		s.d.kick()
	}
}

// claimGone reports whether the claim that a PersistentVolume was bound to is gone.
func (s *discoverer) claimGone(ctx context.Context, ref *corev1.ObjectReference) (bool, error) {
	claim, err := s.d.api.PersistentVolumeClaim(ctx, ref.Namespace, ref.Name)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && claim.UID != ref.UID, err
}
