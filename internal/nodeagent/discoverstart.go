package nodeagent

import (
	"context"
	"errors"
	"sync"

	"k8s.io/client-go/tools/cache"

	"github.com/flexlvm/flexlvm/internal/discovery"
)

// errVolumesUnread: nothing may be offered, cleaned or made part of a group before it is known which disks have a
// PersistentVolume.
var errVolumesUnread = errors.New("the PersistentVolumes of this node's discovered disks have not been read yet")

// startVolumeWatch starts the watch of this node's discovered PersistentVolumes, unless it has been started. Most
// clusters discover nothing, and each watch costs the API server.
func (s *discoverer) startVolumeWatch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.volumesNeededAt.IsZero() {
		s.volumesNeededAt = s.d.cfg.Now()
		close(s.volumesNeeded)
	}
}

// followVolumes watches the PersistentVolumes from the first startVolumeWatch on.
func (s *discoverer) followVolumes(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.volumesNeeded:
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), s.volumes.HasSynced) {
			s.d.kick() // VolumeGroups may wait
		}
	})
	s.volumes.RunWithContext(ctx)
}

// awaitVolumes waits until the PersistentVolumes have been read, if they are needed. It returns false if ctx has ended.
func (s *discoverer) awaitVolumes(ctx context.Context) bool {
	if s.needsVolumes() {
		s.startVolumeWatch()
		_ = cache.WaitForCacheSync(ctx.Done(), s.volumes.HasSynced) // true once synced, even if ctx has ended
	}
	return ctx.Err() == nil
}

// needsVolumes reports whether the node may have discovered PersistentVolumes: there is a VolumeDiscovery, or the
// ledger or the last report has disks from one. A VolumeGroup needs to know them, too.
func (s *discoverer) needsVolumes() bool {
	if len(s.spec.GetStore().List()) > 0 || s.d.declared != nil && len(s.d.declared.watch.GetStore().List()) > 0 {
		return true
	}
	if own, synced := s.d.watches.nodeStorage(s.d.cfg.Node); !synced || own != nil && len(own.Status.Discovered) > 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ledger, err := s.ledger, error(nil)
	if ledger == nil {
		ledger, err = discovery.ReadLedger(s.file)
	}
	return err != nil || len(ledger) > 0
}

// ensureVolumeWatch starts the watch of discovered PersistentVolumes if necessary. It reports whether that has synced, or
// has had firstScanTimeout to do so; disksSeen then still reports the disks as unknown.
func (s *discoverer) ensureVolumeWatch() bool {
	if s == nil {
		return true
	}
	s.startVolumeWatch()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.volumes.HasSynced() || s.d.cfg.Now().Sub(s.volumesNeededAt) > firstScanTimeout
}
