package nodeagent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A report is the input of a status beside the observation of a round.
type report struct {
	now       time.Time
	version   string
	err       error    // of the round
	missing   []string // programs that the host lacks
	dryRun    bool
	evictions []flexlvmv1.Eviction
	healing   map[string]bool // volumes whose problem is being repaired
	declared  []flexlvmv1.DeclaredGroup
	// discovered is the result of discovery, in the form of the NodeStorage.
	discovered     []flexlvmv1.Discovered
	discoveredFrom string
	answers        []flexlvmv1.VolumeAnswer
	whyNotCreated  func(id string) string // why a declared volume has not been created
	examined       *examination           // nil: not yet
	policy         eviction.Policy
	// origin returns the data of a released volume's PersistentVolume, by the volume's LVM UUID.
	origin func(uuid string) *flexlvmv1.ReleasedOrigin
}

// statusOf returns the status after a round, based on the last status. After a failed round, the observations
// and the other conditions than Ready stay as they were.
func statusOf(was flexlvmv1.NodeStorageStatus, f observation, r report) flexlvmv1.NodeStorageStatus {
	is := *was.DeepCopy()
	is.ObservedTime = second(r.now)
	is.Version = r.version
	is.Evictions = r.evictions
	is.DeclaredGroups, is.Answers = r.declared, r.answers
	is.Discovered, is.DiscoveredFrom = r.discovered, r.discoveredFrom
	if e := r.examined; e != nil {
		is.CheckedTime, is.CheckCount, is.Checks = second(e.at), int32(e.count), e.found
	}
	is.EvictionPolicy = policyStatus(r.policy)
	set := func(kind string, yes bool, reason, message string) {
		status := metav1.ConditionFalse
		if yes {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&is.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: clip(message, maxMessage), LastTransitionTime: second(r.now),
		})
	}
	ready, reason, message := readiness(f, r)
	set(flexlvmv1.ConditionReady, ready, reason, message)
	if r.err != nil {
		return is
	}
	is.Pools = nil
	var pressed []string
	for _, p := range f.result.Pools {
		is.Pools = append(is.Pools, observedPool(p, f, r.policy, was.Pools))
		if p.Pressure {
			pressed = append(pressed, p.PressureMessage)
		}
	}
	is.Pools = uniquePools(is.Pools)
	is.Summary = flexlvmv1.Summarize(is.Pools)
	is.Volumes = int32(len(f.inventory.Volumes))
	is.DeclaredVolumes = declaredVolumes(f, r.whyNotCreated)
	is.Orphans, is.OrphanCount = orphanList(orphanStatus(f.result, r.healing), orphansUnseen(f.inventory, was.Orphans))
	unseen := releasedUnseen(f.inventory, was.Released)
	is.Released = append(releasedStatus(f.result.Released, r.origin, was.Released, unseen), unseen...)
	is.ReleasedCount = int32(len(f.result.Released) + len(unseen))
	set(flexlvmv1.ConditionDiskPressure, len(pressed) > 0, either(len(pressed) > 0, "PoolUnderPressure", "NoPressure"), strings.Join(pressed, "; "))
	short, reason, message := shortfall(f.result.Pools)
	set(flexlvmv1.ConditionShortfall, short, reason, message)
	return is
}

// shortfall returns the condition Shortfall: whether promised room is missing in a pool, and otherwise why pools have
// no more room to promise.
func shortfall(pools []eviction.PoolResult) (short bool, reason, message string) {
	var missing, stalled, inUse []string
	for _, p := range pools {
		if p.Shortfall > 0 {
			missing = append(missing, p.ShortfallMessage)
		}
		if p.StalledMessage != "" {
			stalled = append(stalled, p.StalledMessage)
		}
		if p.InUseMessage != "" {
			inUse = append(inUse, p.InUseMessage)
		}
	}
	switch {
	case len(missing) > 0:
		return true, flexlvmv1.ReasonRoomMissing, strings.Join(missing, "; ")
	case len(stalled) > 0:
		return false, flexlvmv1.ReasonRemovalsFail, strings.Join(append(stalled, inUse...), "; ")
	case len(inUse) > 0:
		return false, flexlvmv1.ReasonFullOfVolumesInUse, strings.Join(inUse, "; ")
	}
	return false, "NoShortfall", ""
}

// observedPool returns a pool's status with the load of its devices and, if the headroom is automatic, the
// recent volumes that determine it. was are the pools of the last report.
func observedPool(p eviction.PoolResult, f observation, policy eviction.Policy, was []flexlvmv1.Pool) flexlvmv1.Pool {
	one := poolStatus(p)
	if !growsIn(f.view, p.Pool.Name) {
		quantizeThinPool(&one, was)
	}
	one.BusyPercent = int32(f.busy[p.Pool.Name])
	if policy.Headroom == eviction.HeadroomAuto && p.Pool.Thin == nil {
		for _, v := range eviction.RecentInUse(f.view, p.Pool) {
			one.RecentVolumes = append(one.RecentVolumes, flexlvmv1.RecentVolume{Room: quantity(v.Allocated), Created: second(v.Created)})
		}
	}
	return one
}

// growsIn reports whether a volume of a pool waits for room to grow. If so, its numbers are not rounded: the
// provisioner goes by the report, and a thin pool frees exactly the room that a growth needs.
func growsIn(view eviction.View, pool volume.PoolName) bool {
	return slices.ContainsFunc(view.PersistentVolumes, func(c persistentvolume.Volume) bool { return c.Growing > c.Size && c.Pool() == pool })
}

func either(yes bool, a, b string) string {
	if yes {
		return a
	}
	return b
}

// readiness returns the status, reason and message of the condition Ready.
func readiness(f observation, r report) (bool, string, string) {
	switch {
	case len(r.missing) > 0: // first, because it causes other failures
		return false, reasonTools, fmt.Sprintf("the host lacks %s; install the packages that hold them (`flexlvm doctor` names each)", strings.Join(r.missing, ", "))
	case r.err != nil:
		return false, reasonOf(r.err), r.err.Error()
	case f.result.Blocked != "":
		return false, reasonBlocked, f.result.Blocked
	case f.result.OrphansBlocked != "":
		return false, reasonOrphans, f.result.OrphansBlocked
	case len(f.inventory.Pools) == 0:
		return true, flexlvmv1.ReasonNoPools, "LVM sees no volume group on this node; if there was one, bring its disks back (`flexlvm doctor --group GROUP` shows whether LVM's devices file hides them), otherwise name its disks in a VolumeGroup (docs/volume-groups.md; `kubectl describe nodestorage NODE` shows its result), or run `flexlvm vg create DEVICE` on it"
	case r.dryRun:
		return true, "DryRun", "the daemon runs with --dry-run: it logs what it would do and changes nothing"
	}
	return true, "Ready", "the host's programs are there, and LVM and the API answer"
}

func poolStatus(p eviction.PoolResult) flexlvmv1.Pool {
	byState := make(map[string]int32, len(p.ByState))
	for state, n := range p.ByState {
		byState[string(state)] = int32(n)
	}
	out := flexlvmv1.Pool{
		Name: string(p.Pool.Name), UUID: p.Pool.UUID, Layout: string(volume.Linear),
		Size: quantity(p.Pool.Size), Free: quantity(p.Pool.Free),
		Reclaimable: quantity(p.Reclaimable), Promised: quantity(p.Promised),
		ReclaimableReplicas: quantity(p.Replicas), Removing: quantity(p.Removing),
		Allocatable: quantity(p.Allocatable), ExtentSize: quantity(p.Pool.Extent), Closed: clip(p.Closed, maxMessage),
		RemovalsFail: p.RemovalsFail,
		DeviceFree:   onDevices(p.Pool.DeviceFree), DeviceReclaimable: onDevices(p.DeviceReclaimable),
		UsedPercent: int32(p.UsedPercent), VolumesByState: byState, ForeignVolumes: int32(p.Foreign),
		MetadataUsedPercent: int32(eviction.MetadataUsedPercent(p.Pool)), MissingDevices: int32(p.Pool.Missing),
	}
	if p.Pool.Directories != nil {
		out.Layout = string(volume.Directory)
	}
	if p.Pool.Thin != nil {
		out.Layout = string(volume.Thin)
		if p.Pool.Thin.Known {
			data, metadata := int32(eviction.ThinUsedPercent(p.Pool)), int32(eviction.ThinMetadataUsedPercent(p.Pool))
			out.ThinDataPercent, out.ThinMetadataPercent = &data, &metadata
		}
	}
	return out
}

func onDevices(all []volume.Bytes) []resource.Quantity {
	var out []resource.Quantity
	for _, bytes := range all[:min(len(all), flexlvmv1.MaxPoolDevices)] {
		out = append(out, quantity(bytes))
	}
	return out
}

// uniquePools drops the second volume group of the same name, which LVM allows and the API does not. It is
// reported as a problem of the group.
func uniquePools(all []flexlvmv1.Pool) []flexlvmv1.Pool {
	return slices.CompactFunc(all, func(a, b flexlvmv1.Pool) bool { return a.Name == b.Name })
}

// orphanStatus returns the volumes that need a person's attention: orphans and volumes with a problem, oldest
// first.
func orphanStatus(r eviction.Result, healing map[string]bool) []flexlvmv1.Orphan {
	var all []inventory.Volume
	seen := map[string]bool{}
	for _, o := range r.Orphans {
		all = append(all, o.Volume)
		seen[o.Volume.ID()] = true
	}
	for _, v := range r.Problems {
		if !seen[v.ID()] && !healing[v.ID()] {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b inventory.Volume) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(eviction.KeyOf(&a).String(), eviction.KeyOf(&b).String()))
	})
	out := make([]flexlvmv1.Orphan, 0, len(all))
	for _, v := range all {
		one := flexlvmv1.Orphan{
			Pool: string(v.Group), Name: string(v.Name), State: string(v.State), Namespace: v.Namespace,
			Size: quantity(v.Size), FilesystemUUID: v.FS, FSType: string(v.FSType), Encrypted: v.Encrypted, Created: second(v.Created), LastUsed: second(v.LastUsed),
			Problem: clip(v.Problem, maxMessage),
		}
		if v.Kind != volume.Claim {
			one.Kind = string(v.Kind)
		}
		if v.Layout == volume.Directory {
			one.Layout = string(v.Layout)
		}
		out = append(out, one)
	}
	return out
}

// orphanList returns the orphans for the NodeStorage, and their number. The unseen ones are recorded nowhere else, so
// the list keeps all of them.
func orphanList(seen, unseen []flexlvmv1.Orphan) ([]flexlvmv1.Orphan, int32) {
	listed := seen[:min(len(seen), max(0, flexlvmv1.MaxOrphans-len(unseen)))]
	return slices.Concat(listed, unseen), int32(len(seen) + len(unseen))
}

// orphansUnseen returns the entries of the last list whose volumes cannot be seen now, because they may still be there.
// They were listed before, so their number does not grow.
func orphansUnseen(in inventory.Inventory, was []flexlvmv1.Orphan) (out []flexlvmv1.Orphan) {
	for _, o := range was {
		// The entry does not say which directory pool of its group the volume is in. LVM itself lists the other volumes.
		unreadable := o.Layout == string(volume.Directory) && slices.ContainsFunc(in.Pools, func(p inventory.Pool) bool {
			return p.Name.Group() == volume.Group(o.Pool) && p.VolumesUnknown()
		})
		if !unreadable && !mayHoldUnseen(in, volume.PoolName(o.Pool)) || isOrphanSeen(in, o) {
			continue
		}
		o.Problem = cmp.Or(o.Problem, "its volume group is not seen at present, or its pool cannot be read")
		out = append(out, o)
	}
	return out
}

// isOrphanSeen reports whether an inventory has the volume of an entry, whose group may have been renamed.
func isOrphanSeen(in inventory.Inventory, o flexlvmv1.Orphan) bool {
	return slices.ContainsFunc(in.Volumes, func(v inventory.Volume) bool {
		return string(v.Name) == o.Name && v.FS == o.FilesystemUUID && (v.FS != "" || string(v.Group) == o.Pool)
	})
}

// sameStatus reports whether two statuses are equal except for their times.
func sameStatus(a, b flexlvmv1.NodeStorageStatus) bool {
	a.ObservedTime, b.ObservedTime = metav1.Time{}, metav1.Time{}
	a.CheckedTime, b.CheckedTime = metav1.Time{}, metav1.Time{}
	return equality.Semantic.DeepEqual(a, b)
}
