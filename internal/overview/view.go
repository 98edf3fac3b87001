package overview

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// here stands for the UID of the cluster, because a report contains only volumes of its own cluster.
const here = "this"

type (
	poolView   = inventory.Pool
	volumeView = inventory.Volume
)

// viewOf converts a node's report into the view that the planner takes. Of the volumes in use it contains only
// their total and those created recently. What is promised is a single PersistentVolume for each pool. The size of
// LVM's metadata area is unknown, so no evictions for it are predicted.
func viewOf(s *flexlvmv1.NodeStorage, now time.Time) (eviction.View, eviction.Policy) {
	view := eviction.View{Now: now, Cluster: here, PodsKnown: true}
	groups := map[volume.Group]string{}
	for _, p := range s.Status.Pools {
		groups[volume.Group(p.Name)] = p.UUID
	}
	for i, p := range s.Status.Pools {
		name := volume.PoolName(p.Name)
		one := poolView{
			Name: name, UUID: p.UUID, Size: bytesOf(p.Size), Free: bytesOf(p.Free) + bytesOf(p.Removing),
			Extent: max(bytesOf(p.ExtentSize), 1), Missing: int(p.MissingDevices),
		}
		if p.Layout == string(volume.Thin) {
			one.Thin = thinOf(p, groups[name.Group()])
		}
		if p.Layout == string(volume.Directory) {
			one.Directories = &inventory.DirectoryPool{GroupUUID: groups[name.Group()], Known: true, Unfit: p.Closed}
		}
		for n, free := range p.DeviceFree {
			one.DeviceFree = append(one.DeviceFree, bytesOf(free))
			one.Devices = append(one.Devices, strconv.Itoa(n))
		}
		view.Pools = append(view.Pools, one)
		if p.RemovalsFail {
			view.Volumes = append(view.Volumes, unfinished(&one)...)
		}
		for n, r := range p.RecentVolumes {
			view.Volumes = append(view.Volumes, inUse(volume.Name("what-if/recent-"+strconv.Itoa(n)), &one, bytesOf(r.Room), r.Created.Time))
		}
		if promised := bytesOf(p.Promised); promised > 0 {
			view.PersistentVolumes = append(view.PersistentVolumes, persistentvolume.Volume{
				PV: "what-if/promised-" + strconv.Itoa(i), Group: name.Group(), Volume: volume.Name("what-if/promised-" + strconv.Itoa(i)), Cluster: here,
				Size: 1, Shape: shapeIn(name), Charged: promised, Phase: corev1.VolumeBound, HasFinalizer: true,
			})
		}
	}
	for _, r := range s.Status.Released {
		v := released(r)
		v.GroupUUID = groups[v.Group]
		if r.Kept == flexlvmv1.KeptWanted {
			view.Unreadable = append(view.Unreadable, r.Name)
		}
		view.Volumes = append(view.Volumes, v)
	}
	return view, policyOf(s)
}

// inUse returns a volume in use as the headroom needs it. Its state is retained, because the planner decides
// nothing about retained volumes and requires no PersistentVolume for them.
func inUse(name volume.Name, in *poolView, room volume.Bytes, created time.Time) volumeView {
	return volumeView{
		Group: in.Name.Group(), GroupUUID: in.GroupUUID(), Name: name, UUID: string(in.Name) + "/" + string(name), State: volume.Retained,
		Allocated: room, Cluster: here, Kind: volume.Claim, Shape: shapeIn(in.Name), Created: created,
	}
}

// unfinished returns as many doomed volumes of a pool as keep the planner from evicting volumes there for their room: a
// report only says that removals fail. They hold nothing, because the room of such volumes is not free in the report.
func unfinished(in *poolView) (out []volumeView) {
	for i := range eviction.MaxUnfinished {
		name := volume.Name("what-if/unfinished-" + strconv.Itoa(i))
		out = append(out, volumeView{
			Group: in.Name.Group(), GroupUUID: in.GroupUUID(), Name: name, UUID: string(in.Name) + "/" + string(name), State: volume.Doomed,
			Cluster: here, Kind: volume.Claim, Shape: shapeIn(in.Name), Problem: "it could not be removed",
		})
	}
	return out
}

func thinOf(p flexlvmv1.Pool, group string) *inventory.ThinPool {
	out := &inventory.ThinPool{GroupUUID: group, Known: p.ThinDataPercent != nil, Unfit: p.Closed}
	if p.ThinMetadataPercent != nil {
		out.Metadata, out.MetadataUsed = 100, volume.Bytes(*p.ThinMetadataPercent)
	}
	return out
}

// released converts a volume of a report for the planner.
func released(r flexlvmv1.ReleasedVolume) volumeView {
	pool := volume.PoolName(r.Pool)
	v := volumeView{
		Group: pool.Group(), Name: volume.Name(r.Name), UUID: r.Pool + "/" + r.Name, State: volume.State(r.State),
		Size: bytesOf(r.Size), Allocated: bytesOf(r.Room), AllocatedWhenFull: bytesOf(r.Room), Namespace: r.Namespace, Cluster: here, Kind: volume.Claim,
		LastUsed: r.LastUsed.Time, Released: r.Released.Time, Created: r.Created.Time, Reclaim: cmp.Or(volume.Reclaim(r.Reclaim), volume.ReclaimLazy),
		Open: r.Kept == flexlvmv1.KeptInUse,
	}
	v.Shape = shapeIn(pool)
	if r.Layout != "" {
		v.Shape = volume.Shape{Layout: volume.Layout(r.Layout), Stripes: int(r.Stripes), StripeKiB: int(r.StripeSizeKiB), Mirrors: int(r.Mirrors)}
	}
	v.FSType, v.Encrypted = volume.FSType(r.FSType), r.Encrypted
	v.FS, v.Kind = r.FilesystemUUID, cmp.Or(volume.Kind(r.Kind), volume.Claim)
	v.AllocatedWhenFull = max(v.Allocated, bytesOf(r.FullSize))
	switch r.Kept {
	case flexlvmv1.KeptProblem:
		v.Problem = "it, or its pool, has a problem"
	case flexlvmv1.KeptRemoving:
		v.Problem = "it is being removed" // its room already counts as free
	}
	return v
}

// shapeIn returns the default shape of volumes in a pool.
func shapeIn(pool volume.PoolName) volume.Shape {
	if _, of, is := strings.Cut(string(pool), ":"); is {
		return volume.Shape{Layout: volume.Directory, DirectoryPool: volume.Name(of)}
	}
	if _, thin, is := strings.Cut(string(pool), "/"); is {
		return volume.Shape{Layout: volume.Thin, ThinPool: volume.Name(thin)}
	}
	return volume.Shape{Layout: volume.Linear}
}

// policyOf returns the policy of the node's daemon, or the default if it does not report its policy.
func policyOf(s *flexlvmv1.NodeStorage) eviction.Policy {
	policy := eviction.DefaultPolicy()
	policy.Headroom = eviction.Headroom{}
	if p := s.Status.EvictionPolicy; p != nil {
		_ = policy.Headroom.Set(p.Headroom) // older daemons do not report it: no headroom
		policy.HighPercent, policy.LowPercent = int(p.HighThresholdPercent), int(p.LowThresholdPercent)
		policy.MinAge, policy.MaxAge = p.MinAge.Duration, p.MaxAge.Duration
	}
	return policy
}

// blockedOf returns why a node evicts nothing, or an empty string.
func blockedOf(s *flexlvmv1.NodeStorage) string {
	for _, c := range s.Status.Conditions {
		if c.Type == flexlvmv1.ConditionReady && c.Reason == flexlvmv1.ReasonEvictionBlocked {
			return c.Message
		}
	}
	return ""
}
