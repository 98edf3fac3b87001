package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Reasons of the condition Ready when it is not true.
const (
	reasonAPI     = flexlvmv1.ReasonAPIUnavailable
	reasonLVM     = flexlvmv1.ReasonLVMFailed
	reasonTools   = flexlvmv1.ReasonToolsMissing
	reasonBlocked = flexlvmv1.ReasonEvictionBlocked
	reasonOrphans = flexlvmv1.ReasonOrphanEvictionBlocked
)

// A failure is the error of a round, and its reason in one word.
type failure struct {
	reason string
	err    error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// reasonOf returns the reason for the error of a round.
func reasonOf(err error) string {
	if f := (*failure)(nil); errors.As(err, &f) {
		return f.reason
	}
	return reasonAPI
}

// observation is what one round has observed and decided.
type observation struct {
	at         time.Time
	inventory  inventory.Inventory
	objects    map[string]*corev1.PersistentVolume // by name
	unreadable map[string]error                    // by name of the PersistentVolume
	view       eviction.View
	verdicts   []eviction.Verdict
	result     eviction.Result
	moves      []eviction.Move
	busy       map[volume.PoolName]int // percent
	confirmed  bool                    // objects were confirmed with the API server in this round
}

// observe takes the inventory of the node, reads the PersistentVolumes and decides what to do. After
// an error, the round must do nothing.
//
// The inventory is taken before the PersistentVolumes are read: a volume is removed only because of what the
// API says after the volume was observed.
func (d *Daemon) observe(ctx context.Context) (observation, error) {
	changes := d.blockedUnmounts.changes.Load()
	f, err := d.observeNode(ctx)
	if err != nil {
		return f, &failure{reasonLVM, fmt.Errorf("look at the node's volumes: %w", err)}
	}
	d.announceGone(ctx, f.inventory)
	if err := d.identifyCluster(ctx); err != nil {
		return f, &failure{reasonAPI, err}
	}
	d.noteBlockedUnmounts(f.inventory.Volumes, changes)
	d.heal(ctx, f.inventory)
	if err := d.loadHistory(ctx); err != nil {
		return f, &failure{reasonAPI, err}
	}
	_, objects, synced := d.watches.volumesAt()
	if !synced {
		return f, &failure{reasonAPI, errors.New("the PersistentVolumes of this node have not been read yet; see whether the daemon may list and watch them")}
	}
	d.clearRemovals() // they were decided on an older inventory
	d.checkKept(ctx, f)
	d.decide(&f, byName(objects))
	d.noteGroups(f)
	if err := d.confirmIfNeeded(ctx, &f); err != nil {
		return f, &failure{reasonAPI, fmt.Errorf("%w; nothing is released and nothing evicted until the API server answers", err)}
	}
	return f, nil
}

// observeNode takes the inventory, and forgets volumes that are not in it.
func (d *Daemon) observeNode(ctx context.Context) (observation, error) {
	f := observation{at: d.cfg.Now()}
	var err error
	if f.inventory, err = d.engine.Inventory(ctx); err != nil {
		return f, err
	}
	// Also in rounds that fail later, such as while the API server does not answer.
	d.validSnapshots.Store(hasValidSnapshots(f.inventory))
	d.futureTimes.Replace(f.at, f.inventory.Volumes)
	f.busy = d.diskLoad.measure(f.at, f.inventory.Pools)
	d.forgetGone(f.inventory)
	return f, nil
}

// identifyCluster reads the UID of the daemon's cluster once; sameCluster compares later answers with it.
func (d *Daemon) identifyCluster(ctx context.Context) error {
	if d.cluster != "" {
		return nil
	}
	cluster, err := d.api.Cluster(ctx)
	if err == nil {
		d.cluster = cluster
	}
	return err
}

// marked returns the volumes with Problem set on those whose removal has failed and is not retried yet, so that
// others are evicted instead. A doomed volume keeps its Problem until it is gone, because nobody knows when its
// room is free.
func (d *Daemon) marked(now time.Time, all []inventory.Volume, removing map[string]bool) []inventory.Volume {
	out := make([]inventory.Volume, len(all))
	copy(out, all)
	for i := range out {
		if removing[out[i].ID()] {
			out[i].Problem = "" // the removal changed it while the inventory was taken
		}
		b, failed := d.removalRetries.get(out[i].ID())
		if failed && (now.Before(b.until) || out[i].State == volume.Doomed) && out[i].Problem == "" {
			out[i].Problem = fmt.Sprintf("removing it has failed (%s); it is retried", b.why)
		}
	}
	return out
}

// removing returns the IDs of the volumes that are being removed: a removal queue is working on them, or has
// removed them since the inventory was taken. It includes volumes whose removal has failed once: the retry may
// succeed, and a volume that is evicted instead is lost permanently.
func (d *Daemon) removing(now time.Time, all []inventory.Volume) map[string]bool {
	out := map[string]bool{}
	for _, j := range d.atWork() {
		out[j.volume.ID()] = true
	}
	for i := range all {
		id := all[i].ID()
		b, failed := d.removalRetries.get(id)
		switch {
		case failed && b.times > 1:
			delete(out, id) // nobody knows when its room is free
		case d.removed.has(id), failed && (now.Before(b.until) || all[i].State == volume.Doomed):
			out[id] = true
		}
	}
	return out
}

func orphanNames(r eviction.Result) map[eviction.Key]bool {
	out := make(map[eviction.Key]bool, len(r.Orphans))
	for i := range r.Orphans {
		out[eviction.KeyOf(&r.Orphans[i].Volume)] = true
	}
	return out
}

// forgetGone drops the state of volumes that are not in the inventory.
func (d *Daemon) forgetGone(in inventory.Inventory) {
	there, ids := make(map[string]bool, len(in.Volumes)), make(map[string]bool, len(in.Volumes))
	for _, v := range in.Volumes {
		there[v.UUID], ids[v.ID()] = true, true
	}
	d.removalRetries.keepOnly(ids)
	d.unanswered.keepOnly(ids)
	d.keptElsewhere.keepOnly(there)
	d.keptChecked.keepOnly(there)
	d.healRetries.keepOnly(ids)
	d.removed.keepOnly(ids)
	d.trimRetries.keepOnly(there)
	d.releasedClaims.keepOnly(func(uuid string, pool volume.PoolName) bool { return there[uuid] || mayHoldUnseen(in, pool) })
}
