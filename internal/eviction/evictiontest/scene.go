// Package evictiontest builds Views for tests.
package evictiontest

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// Cluster is the cluster of a scene's volumes.
	Cluster = "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01"
	// GroupUUID is the UUID of every volume group of a scene.
	GroupUUID = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
)

// Now is the time of every scene.
var Now = time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)

// A Scene builds a View, in GiB and hours: pool "flexlvm" of 100 GiB, and whatever a test adds to it. The room
// that no volume holds is free.
type Scene struct {
	View   eviction.View
	Policy eviction.Policy
}

// New returns a scene with one PersistentVolume and its volume.
func New() *Scene {
	s := &Scene{View: eviction.View{Now: Now, Cluster: Cluster}, Policy: eviction.DefaultPolicy()}
	s.Pool("flexlvm", 100)
	// A PersistentVolume and its volume without problems: the API server is not empty.
	s.Volume("settled", volume.Ready, 1)
	s.PersistentVolume("settled", 1)
	return s
}

// Pool adds a pool of size GiB, all of it free.
func (s *Scene) Pool(name string, size int) {
	bytes := volume.Bytes(size) * volume.GiB
	s.View.Pools = append(s.View.Pools, inventory.Pool{
		Name: volume.PoolName(name), UUID: GroupUUID, Size: bytes, Free: bytes, Extent: 4 * volume.MiB,
	})
}

// PoolNamed returns the pool of that name.
func (s *Scene) PoolNamed(name volume.PoolName) *inventory.Pool {
	i := slices.IndexFunc(s.View.Pools, func(p inventory.Pool) bool { return p.Name == name })
	return &s.View.Pools[i]
}

// ForeignVolumes adds count logical volumes that are not flexlvm's.
func (s *Scene) ForeignVolumes(count, size int) {
	g := s.PoolNamed("flexlvm")
	g.LVs += count
	g.Free -= volume.Bytes(size) * volume.GiB
}

// Volume adds a volume that was created ten days ago, last used five hours ago and released four hours ago. Its
// user may write nine tenths of it.
func (s *Scene) Volume(name string, state volume.State, size int, change ...func(*inventory.Volume)) {
	device := volume.Bytes(size) * volume.GiB
	v := inventory.Volume{
		Group: "flexlvm", GroupUUID: GroupUUID, Name: volume.Name(name), UUID: "uuid-" + name, State: state,
		Size: device / 10 * 9, Allocated: device, Namespace: "db", Cluster: Cluster, Kind: volume.Claim,
		Created: HoursAgo(240), LastUsed: HoursAgo(5), Released: HoursAgo(4),
		Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone, Active: true,
	}
	for _, c := range change {
		c(&v)
	}
	s.View.Volumes = append(s.View.Volumes, v)
	g := s.PoolNamed(v.Pool())
	g.Free -= v.Allocated
	g.LVs++
}

// PersistentVolume adds a bound PersistentVolume that takes size GiB of the pool once its volume exists.
func (s *Scene) PersistentVolume(name string, size int, change ...func(*persistentvolume.Volume)) {
	c := persistentvolume.Volume{
		PV: name, UID: types.UID("uid-" + name), Group: "flexlvm", Volume: volume.Name(name),
		Cluster: Cluster, Kind: volume.Claim,
		Size: volume.Bytes(size) * volume.GiB / 10 * 9, Charged: volume.Bytes(size) * volume.GiB,
		ClaimNamespace: "db", ClaimName: "data-" + name, Phase: corev1.VolumeBound,
		ReclaimPolicy: corev1.PersistentVolumeReclaimDelete, HasFinalizer: true,
		Disposal: volume.Disposal{Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone},
	}
	for _, f := range change {
		f(&c)
	}
	s.View.PersistentVolumes = append(s.View.PersistentVolumes, c)
}

// Replica adds a replica that may be evicted, last used five hours ago, and its PersistentVolume.
func (s *Scene) Replica(name string, size int, change ...func(*inventory.Volume, *persistentvolume.Volume)) {
	s.View.PodsKnown = true
	s.Volume(name, volume.Ready, size)
	s.PersistentVolume(name, size)
	v, c := &s.View.Volumes[len(s.View.Volumes)-1], &s.View.PersistentVolumes[len(s.View.PersistentVolumes)-1]
	v.Kind, c.Kind = volume.Dataset, volume.Dataset
	c.PV = "pvc-" + name
	c.Replica = persistentvolume.Replica{
		Dataset: "hash-of-" + name, Policy: volume.EvictLRU, Complete: true, Readers: "read-" + name, Owner: "vm-" + name, OwnerUID: "uid-of-vm-" + name,
	}
	free := v.Allocated
	for _, f := range change {
		f(v, c)
	}
	s.PoolNamed("flexlvm").Free -= v.Allocated - free
}

// Plan plans with the scene's policy.
func (s *Scene) Plan() eviction.Result { return eviction.Plan(s.View, s.Policy) }

// HoursAgo returns the time h hours before Now.
func HoursAgo(h float64) time.Time {
	return Now.Add(-time.Duration(h * float64(time.Hour)))
}

// LastUsed sets the last use of a volume to h hours ago.
func LastUsed(h float64) func(*inventory.Volume) {
	return func(v *inventory.Volume) { v.LastUsed = HoursAgo(h) }
}

// WithProblem gives a volume a problem.
func WithProblem(v *inventory.Volume) { v.Problem = "odd" }

// ReleasedAgo sets the release of a volume to d ago.
func ReleasedAgo(d time.Duration) func(*inventory.Volume) {
	return func(v *inventory.Volume) { v.Released = Now.Add(-d) }
}

// Immediate gives a volume a class with reclaim: immediate.
func Immediate(v *inventory.Volume) { v.Reclaim = volume.ReclaimImmediate }

// InGroup puts a volume into another group.
func InGroup(g volume.Group) func(*inventory.Volume) {
	return func(v *inventory.Volume) { v.Group = g }
}

// Evicted returns what a plan evicts, in the form "Reason name".
func Evicted(r eviction.Result) []string {
	out := []string{}
	for _, e := range r.Evictions {
		out = append(out, string(e.Reason)+" "+string(e.Volume.Name))
	}
	return out
}

// Phase sets the phase of the PersistentVolume.
func Phase(p corev1.PersistentVolumePhase) func(*persistentvolume.Volume) {
	return func(c *persistentvolume.Volume) { c.Phase = p }
}

// Retain sets the reclaim policy Retain.
func Retain(c *persistentvolume.Volume) { c.ReclaimPolicy = corev1.PersistentVolumeReclaimRetain }

// Deleting marks the PersistentVolume as deleted, but kept by its finalizer.
func Deleting(c *persistentvolume.Volume) { c.Deleting = true }

// NoCluster removes the cluster from a PersistentVolume.
func NoCluster(c *persistentvolume.Volume) { c.Cluster = "" }

// OtherCluster gives a PersistentVolume another cluster.
func OtherCluster(c *persistentvolume.Volume) { c.Cluster = "another" }

// OtherGroup gives a PersistentVolume another group of the same name.
func OtherGroup(c *persistentvolume.Volume) { c.GroupUUID = "another" }

// GroupWas makes a PersistentVolume name the scene's groups by a former name.
func GroupWas(name volume.Group) func(*persistentvolume.Volume) {
	return func(c *persistentvolume.Volume) { c.Group, c.GroupUUID = name, GroupUUID }
}

// CopyOf makes the volume of a PersistentVolume a copy of another.
func CopyOf(source volume.Name) func(*persistentvolume.Volume) {
	return func(c *persistentvolume.Volume) { c.CloneOf = source }
}
