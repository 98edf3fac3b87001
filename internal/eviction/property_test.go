package eviction_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// TestPlanProperties checks the plans of thousands of random views against properties of every plan. The oracle
// defines what a plan may do a second time, independently.
func TestPlanProperties(t *testing.T) {
	reasons := map[eviction.Reason]int{}
	var blocked, short, partly, asked, tight, forMetadata int
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 3))
		s := randomScene(r)
		before := clone(s.View)
		got := s.Plan()
		require.Equal(t, before, s.View, "seed %d: a plan changes nothing", seed)

		shuffled := clone(s.View)
		r.Shuffle(len(shuffled.Volumes), swap(shuffled.Volumes))
		r.Shuffle(len(shuffled.PersistentVolumes), swap(shuffled.PersistentVolumes))
		r.Shuffle(len(shuffled.Pools), swap(shuffled.Pools))
		r.Shuffle(len(shuffled.Unreadable), swap(shuffled.Unreadable))
		require.Equal(t, got, eviction.Plan(shuffled, s.Policy), "seed %d: order is all one", seed)
		require.Equal(t, eviction.Judge(s.View), eviction.Judge(shuffled), "seed %d: order is all one", seed)
		require.Equal(t, eviction.Steps(s.View, got), eviction.Steps(shuffled, got), "seed %d: order is all one", seed)

		o := oracle{s.View, s.Policy}
		o.checkEach(t, seed, got)
		o.checkReplicaEvictions(t, seed, got)
		asked += len(got.ReplicaEvictions)
		for _, p := range got.Pools {
			if o.checkPool(t, seed, got, p) {
				partly++
			}
			if o.checkReplicaEvictionsHelp(t, seed, got, p) {
				tight++
			}
			if o.checkMetadata(t, seed, got, p.Pool) {
				forMetadata++
			}
			if p.Shortfall > 0 {
				short++
			}
		}
		for _, e := range got.Evictions {
			reasons[e.Reason]++
		}
		if got.Blocked != "" {
			blocked++
		}
	}
	t.Logf("%d replicas asked to go; in %d pools each of them was checked to be needed", asked, tight)
	require.Greater(t, asked, 200, "the views are too tame")
	require.Greater(t, tight, 20, "the views are too tame")
	require.Greater(t, forMetadata, 20, "the views are too tame")
	t.Logf("evictions by reason: %v; %d plans blocked; %d pools short, %d of them served in part", reasons, blocked, short, partly)
	for _, reason := range []eviction.Reason{eviction.ReasonImmediate, eviction.ReasonMaxAge, eviction.ReasonPromised, eviction.ReasonHighThreshold, eviction.ReasonOrphan} {
		require.Greater(t, reasons[reason], 100, "the views are too tame: %s", reason)
	}
	require.Greater(t, min(blocked, short, partly), 20, "the views are too tame")
}

func swap[T any](s []T) func(i, j int) { return func(i, j int) { s[i], s[j] = s[j], s[i] } }

func clone(v eviction.View) eviction.View {
	v.Pools, v.Volumes = slices.Clone(v.Pools), slices.Clone(v.Volumes)
	v.PersistentVolumes, v.Unreadable = slices.Clone(v.PersistentVolumes), slices.Clone(v.Unreadable)
	return v
}

// one returns true once in n times.
func one(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func randomScene(r *rand.Rand) *evictiontest.Scene {
	s := &evictiontest.Scene{View: eviction.View{Now: evictiontest.Now, Cluster: evictiontest.Cluster}}
	s.Policy = eviction.Policy{
		HighPercent: 60 + r.IntN(41), LowPercent: 30 + r.IntN(30), MinAge: pick(r, 0, time.Minute, time.Hour),
		ThinDataPercent: 80, ThinMetadataPercent: 80,
		MaxAge: pick(r, 0, 0, 48*time.Hour), EvictOrphans: !one(r, 3), OrphanAge: pick(r, 0, 24*time.Hour), OrphanShare: 1 + r.IntN(40),
	}
	if one(r, 5) {
		s.View.OrphansEvicted = r.IntN(4)
	}
	s.View.PodsKnown = !one(r, 10)
	s.View.Users = map[eviction.ClaimKey]string{}
	groups := []string{"a", "b", "c"}[:1+r.IntN(3)]
	for _, g := range groups {
		s.Pool(g, 0)
		if one(r, 12) {
			s.PoolNamed(volume.PoolName(g)).Missing = 1
		}
		s.Pool(g+"/thin", 0)
		thin := s.PoolNamed(volume.PoolName(g + "/thin"))
		thin.UUID, thin.Missing = "of-the-pool", s.PoolNamed(volume.PoolName(g)).Missing
		thin.Thin = &inventory.ThinPool{GroupUUID: evictiontest.GroupUUID, Known: !one(r, 12), Metadata: 100, MetadataUsed: 10}
	}
	for i := range r.IntN(50) {
		randomVolume(s, r, fmt.Sprintf("v%d", i), pick(r, groups...))
	}
	for i := range r.IntN(8) {
		name, size, pool, shape := fmt.Sprintf("r%d", i), r.IntN(20), volume.Group(pick(r, groups...)), randomShape(r)
		s.Volume(name, volume.Ready, size, evictiontest.InGroup(pool), func(v *inventory.Volume) {
			v.Shape, v.LastUsed = shape, evictiontest.HoursAgo(float64(r.IntN(8)))
		})
		s.PersistentVolume(name, size, func(c *persistentvolume.Volume) { c.Group, c.Shape = pool, shape })
		randomReplica(s, r, &s.View.Volumes[len(s.View.Volumes)-1], &s.View.PersistentVolumes[len(s.View.PersistentVolumes)-1])
	}
	for i := range r.IntN(5) {
		s.PersistentVolume(fmt.Sprintf("p%d", i), 1+r.IntN(40), randomClaim(r), func(c *persistentvolume.Volume) {
			c.Group, c.Shape = volume.Group(pick(r, groups...)), randomShape(r)
			if one(r, 4) {
				c.Kind = volume.Dataset
			}
		})
	}
	for i := range s.View.Pools { // some free room, and some that others hold
		p := &s.View.Pools[i]
		used, free := -p.Free, volume.Bytes(r.IntN(40))*volume.GiB
		p.Size, p.Free = used+free+volume.Bytes(r.IntN(30))*volume.GiB, free
		if p.Thin != nil && one(r, 3) { // volumes share blocks
			p.Size = max(p.Free, p.Size-volume.Bytes(r.IntN(40))*volume.GiB)
		}
	}
	for i := range s.View.PersistentVolumes {
		if one(r, 20) {
			evictiontest.GroupWas("renamed")(&s.View.PersistentVolumes[i])
		}
	}
	for _, g := range groups {
		exported := one(r, 12)
		s.PoolNamed(volume.PoolName(g)).Exported, s.PoolNamed(volume.PoolName(g+"/thin")).Exported = exported, exported
		if one(r, 2) { // the LVM metadata area is closed once 18,000 bytes are used
			used, unknown := volume.Bytes(17500+r.IntN(1200)), one(r, 8)
			for _, p := range []*inventory.Pool{s.PoolNamed(volume.PoolName(g)), s.PoolNamed(volume.PoolName(g + "/thin"))} {
				p.MetadataSize, p.MetadataFree = 40000, 20000-used
				if unknown { // small, so that one volume would be enough
					p.MetadataSize, p.MetadataFree = 2000, 0
				}
			}
		}
	}
	return s
}

func randomVolume(s *evictiontest.Scene, r *rand.Rand, name, group string) {
	state := pick(r, volume.Ready, volume.Ready, volume.Creating, unreferenced, unreferenced, unreferenced, volume.Retained, volume.Doomed)
	size, shape := r.IntN(20), randomShape(r)
	s.Volume(name, state, size, evictiontest.InGroup(volume.Group(group)), func(v *inventory.Volume) {
		v.Shape, v.AllocatedWhenFull = shape, v.Allocated+volume.Bytes(r.IntN(20))*volume.GiB
		// There are few different times and sizes, so that ties occur.
		v.LastUsed, v.Released = evictiontest.HoursAgo(float64(r.IntN(8))), evictiontest.HoursAgo(pick(r, 0.0, 0.5, 3, 60))
		v.Created = evictiontest.HoursAgo(pick(r, 1.0, 100, 100))
		v.Open, v.HasSnapshots = one(r, 12), one(r, 20)
		if one(r, 12) {
			v.Mounts = []string{"/mnt"}
		}
		if one(r, 12) {
			v.Problem = "odd"
		}
		if one(r, 12) {
			v.Cluster = pick(r, "", "another")
		}
		if one(r, 6) {
			v.Reclaim = volume.ReclaimImmediate
		}
		if state == volume.Doomed {
			v.Name = v.Name.Doomed()
		}
	})
	if one(r, 15) {
		s.View.Unreadable = append(s.View.Unreadable, name)
	}
	claimed := 8 // an unreferenced volume seldom has a claim, a ready one usually does
	if state == volume.Ready || state == volume.Creating {
		claimed = 2 + r.IntN(9)
	}
	if has := one(r, 8); has && claimed == 8 || claimed < 8 && !has {
		s.PersistentVolume(name, size, randomClaim(r), func(c *persistentvolume.Volume) {
			c.Group, c.Shape = volume.Group(group), shape
			if one(r, 10) {
				c.Size += 5 * volume.GiB
			}
			if state == volume.Ready && one(r, 2) {
				randomReplica(s, r, &s.View.Volumes[len(s.View.Volumes)-1], c)
			}
		})
	}
}

// randomReplica makes a volume and its claim those of a replica, usually an evictable one.
func randomReplica(s *evictiontest.Scene, r *rand.Rand, v *inventory.Volume, c *persistentvolume.Volume) {
	v.Kind, c.Kind = volume.Dataset, volume.Dataset
	e := &c.Replica
	*e = persistentvolume.Replica{Dataset: "hash", Policy: volume.EvictLRU, Complete: !one(r, 8), Readers: "read-" + c.PV, Owner: "vm"}
	if one(r, 8) {
		e.Policy = pick(r, volume.EvictNever, "")
	}
	if one(r, 3) {
		e.Asked = evictiontest.Now
	}
	if one(r, 10) {
		e.Evictable = evictiontest.Now
	}
	if one(r, 15) {
		e.Garbled = true
	}
	if one(r, 15) {
		e.Readers = ""
	}
	if one(r, 8) {
		s.View.Users[eviction.ClaimKey{Namespace: "db", Name: pick(r, c.ClaimName, e.Readers, "else")}] = "db/pod"
	}
	if one(r, 10) {
		v.Kind = volume.Claim
	}
}

// randomShape returns a thin shape once in three times.
func randomShape(r *rand.Rand) volume.Shape {
	if one(r, 3) {
		return volume.Shape{Layout: volume.Thin, ThinPool: "thin"}
	}
	return volume.Shape{Layout: volume.Linear}
}

func randomClaim(r *rand.Rand) func(*persistentvolume.Volume) {
	return func(c *persistentvolume.Volume) {
		if !one(r, 3) {
			return
		}
		c.Phase = pick(r, corev1.VolumePending, corev1.VolumeAvailable, corev1.VolumeBound, corev1.VolumeReleased, corev1.VolumeFailed)
		c.Deleting = one(r, 4)
		c.Cluster = pick(r, evictiontest.Cluster, evictiontest.Cluster, evictiontest.Cluster, "another", "")
		c.ReclaimPolicy = pick(r, corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain)
	}
}
