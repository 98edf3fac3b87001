package gc_test

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/gc"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	sceneCluster = "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01"
	sceneUUID    = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
)

var sceneNow = time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)

// A scene is a View in the making, in GiB and hours: pool "flexlvm" of 100 GiB,
// and whatever a test adds to it. What the volumes do not hold is free.
type scene struct {
	view   gc.View
	policy gc.Policy
}

func newScene() *scene {
	s := &scene{view: gc.View{Now: sceneNow, Cluster: sceneCluster}, policy: gc.DefaultPolicy()}
	s.pool("flexlvm", 100)
	// A claim and its volume that are as they should be: the API server is not empty.
	s.volume("settled", volume.Ready, 1)
	s.claim("settled", 1)
	return s
}

func (s *scene) pool(name string, size int) {
	bytes := volume.Bytes(size) * volume.GiB
	s.view.Pools = append(s.view.Pools, node.Pool{
		Name: volume.PoolName(name), UUID: sceneUUID, Size: bytes, Free: bytes, Extent: 4 * volume.MiB,
	})
}

func (s *scene) group(name volume.PoolName) *node.Pool {
	i := slices.IndexFunc(s.view.Pools, func(p node.Pool) bool { return p.Name == name })
	return &s.view.Pools[i]
}

// others are logical volumes that are nobody's business here.
func (s *scene) others(count, size int) {
	g := s.group("flexlvm")
	g.LVs += count
	g.Free -= volume.Bytes(size) * volume.GiB
}

// volume adds a volume that was made ten days ago, last used five hours ago and
// released four hours ago. Its user may write nine tenths of it.
func (s *scene) volume(name string, state volume.State, size int, change ...func(*node.Volume)) {
	device := volume.Bytes(size) * volume.GiB
	v := node.Volume{
		Group: "flexlvm", GroupUUID: sceneUUID, Name: volume.Name(name), UUID: "uuid-" + name, State: state,
		Size: device / 10 * 9, Device: device, Namespace: "db", Cluster: sceneCluster, Kind: volume.Claim,
		Created: hoursAgo(240), LastUsed: hoursAgo(5), Released: hoursAgo(4),
		Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone, Active: true,
	}
	for _, c := range change {
		c(&v)
	}
	s.view.Volumes = append(s.view.Volumes, v)
	g := s.group(v.Pool())
	g.Free -= v.Device
	g.LVs++
}

// claim adds a claim that is bound and takes size of the pool once it is made.
func (s *scene) claim(name string, size int, change ...func(*gc.Claim)) {
	c := gc.Claim{
		PV: name, UID: types.UID("uid-" + name), Group: "flexlvm", Volume: volume.Name(name),
		Cluster: sceneCluster, Kind: volume.Claim,
		Size: volume.Bytes(size) * volume.GiB / 10 * 9, Charged: volume.Bytes(size) * volume.GiB,
		ClaimNamespace: "db", ClaimName: "data-" + name, Phase: corev1.VolumeBound,
		ReclaimPolicy: corev1.PersistentVolumeReclaimDelete, HasFinalizer: true,
		Disposal: volume.Disposal{Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone},
	}
	for _, f := range change {
		f(&c)
	}
	s.view.Claims = append(s.view.Claims, c)
}

func (s *scene) plan() gc.Result { return gc.Plan(s.view, s.policy) }

func hoursAgo(h float64) time.Time {
	return sceneNow.Add(-time.Duration(h * float64(time.Hour)))
}

func lastUsed(h float64) func(*node.Volume) {
	return func(v *node.Volume) { v.LastUsed = hoursAgo(h) }
}

func odd(v *node.Volume) { v.Problem = "odd" }

func releasedAgo(d time.Duration) func(*node.Volume) {
	return func(v *node.Volume) { v.Released = sceneNow.Add(-d) }
}

func immediate(v *node.Volume) { v.Reclaim = volume.ReclaimImmediate }

func inGroup(g volume.Group) func(*node.Volume) {
	return func(v *node.Volume) { v.Group = g }
}

// evicted is what a plan does, in the form "Reason name".
func evicted(r gc.Result) []string {
	out := []string{}
	for _, e := range r.Evictions {
		out = append(out, string(e.Reason)+" "+string(e.Volume.Name))
	}
	return out
}
