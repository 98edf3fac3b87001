package eviction_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// replicaEvictions returns the replicas whose eviction a plan requests.
func replicaEvictions(r eviction.Result) []string {
	out := []string{}
	for _, f := range r.ReplicaEvictions {
		out = append(out, string(f.Volume.Name))
	}
	return out
}

// Each of these reasons keeps a replica, whatever room is needed.
func TestPlanKeepsReplicas(t *testing.T) {
	const goes = true
	for name, tt := range map[string]struct {
		change func(*inventory.Volume, *persistentvolume.Volume)
		scene  func(*evictiontest.Scene)
		goes   bool
	}{
		"as it should be":   {goes: goes},
		"asked for already": {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.Replica.Asked = evictiontest.Now }, goes: goes},
		"unlabelled already": {change: func(_ *inventory.Volume, c *persistentvolume.Volume) {
			c.Replica.Asked, c.Replica.Unlabelled = evictiontest.Now, evictiontest.Now
		}, goes: goes},
		"just old enough": {change: func(v *inventory.Volume, _ *persistentvolume.Volume) {
			v.LastUsed = evictiontest.Now.Add(-2 * time.Minute)
		}, goes: goes},
		"used a moment ago": {change: func(v *inventory.Volume, _ *persistentvolume.Volume) {
			v.LastUsed = evictiontest.Now.Add(-2*time.Minute + time.Second)
		}},
		"made a moment ago":         {change: func(v *inventory.Volume, _ *persistentvolume.Volume) { v.Created = evictiontest.Now }},
		"made at an unknown time":   {change: func(v *inventory.Volume, _ *persistentvolume.Volume) { v.Created = time.Time{} }},
		"used at an unknown time":   {change: func(v *inventory.Volume, _ *persistentvolume.Volume) { v.LastUsed = time.Time{} }},
		"used in the future":        {change: func(v *inventory.Volume, _ *persistentvolume.Volume) { v.LastUsed = evictiontest.Now.Add(time.Hour) }},
		"policy Never":              {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.Replica.Policy = volume.EvictNever }},
		"no policy":                 {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.Replica.Policy = "" }},
		"incomplete":                {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.Replica.Complete = false }},
		"not understood":            {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.Replica.Garbled = true }},
		"of no dataset":             {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.Replica = persistentvolume.Replica{} }},
		"nobody knows who reads it": {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.Replica.Readers = "" }},
		"open":                      {change: func(v *inventory.Volume, _ *persistentvolume.Volume) { v.Open = true }},
		"mounted":                   {change: func(v *inventory.Volume, _ *persistentvolume.Volume) { v.Mounts = []string{"/mnt"} }},
		"snapshots hang on it":      {change: func(v *inventory.Volume, _ *persistentvolume.Volume) { v.HasSnapshots = true }},
		"a problem":                 {change: func(v *inventory.Volume, _ *persistentvolume.Volume) { v.Problem = "odd" }},
		"creating":                  {change: func(v *inventory.Volume, _ *persistentvolume.Volume) { v.State = volume.Creating }},
		"retained":                  {change: func(v *inventory.Volume, _ *persistentvolume.Volume) { v.State = volume.Retained }},
		"the volume is a claim's":   {change: func(v *inventory.Volume, _ *persistentvolume.Volume) { v.Kind = volume.Claim }},
		"the volume is another's":   {change: func(v *inventory.Volume, _ *persistentvolume.Volume) { v.Cluster = "another" }},
		"the claim is another's":    {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.Cluster = "another" }},
		"the claim is nobody's":     {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.Cluster = "" }},
		"made in another group":     {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.GroupUUID = "another" }},
		"policy Retain": {change: func(_ *inventory.Volume, c *persistentvolume.Volume) {
			c.ReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}},
		"no flexlvm finalizer": {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.HasFinalizer = false }},
		"not bound":            {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.Phase = corev1.VolumeAvailable }},
		"released by hand":     {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.Phase = corev1.VolumeReleased }},
		"being deleted":        {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.Deleting = true }},
		"no claim is named":    {change: func(_ *inventory.Volume, c *persistentvolume.Volume) { c.ClaimName = "" }},
		"a pod reads it": {scene: func(s *evictiontest.Scene) {
			s.View.Users = map[eviction.ClaimKey]string{{Namespace: "db", Name: "read-data"}: "db/p"}
		}},
		"a pod fills it": {scene: func(s *evictiontest.Scene) {
			s.View.Users = map[eviction.ClaimKey]string{{Namespace: "db", Name: "data-data"}: "db/p"}
		}},
		"a pod of another namespace": {scene: func(s *evictiontest.Scene) {
			s.View.Users = map[eviction.ClaimKey]string{{Namespace: "x", Name: "read-data"}: "x/p"}
		}, goes: goes},
		"the last check found a pod": {scene: func(s *evictiontest.Scene) { s.View.ReplicasInUse = map[types.UID]bool{"uid-data": true} }},
		"the pods are not known":     {scene: func(s *evictiontest.Scene) { s.View.PodsKnown = false }},
		"in half a group":            {scene: func(s *evictiontest.Scene) { s.PoolNamed("flexlvm").Missing = 1 }},
		"unreadable's name":          {scene: func(s *evictiontest.Scene) { s.View.Unreadable = []string{"data"} }},
		"the cluster is not known":   {scene: func(s *evictiontest.Scene) { s.View.Cluster = "" }},
		"another claim names it":     {scene: func(s *evictiontest.Scene) { s.PersistentVolume("data", 1) }},
		"another claim, given up": {scene: func(s *evictiontest.Scene) {
			s.PersistentVolume("data", 1, func(c *persistentvolume.Volume) { c.Phase = corev1.VolumeReleased })
		}},
		"in another group, of its name": {scene: func(s *evictiontest.Scene) {
			s.PersistentVolume("data", 1, func(c *persistentvolume.Volume) { c.Group = "other" })
		}, goes: goes},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			change := func(v *inventory.Volume, c *persistentvolume.Volume) {
				if tt.change != nil {
					tt.change(v, c)
				}
			}
			s.Replica("data", 40, change)
			s.PersistentVolume("promised", 90)
			if tt.scene != nil {
				tt.scene(s)
			}
			r := s.Plan()
			require.Empty(t, evictiontest.Evicted(r), "a replica never goes at once")
			if tt.goes {
				require.Equal(t, []string{"data"}, replicaEvictions(r))
				require.Equal(t, 40*volume.GiB, r.Pools[0].Replicas)
				require.Equal(t, 40*volume.GiB, r.Pools[0].Reclaimable)
				return
			}
			require.Empty(t, replicaEvictions(r))
			require.Zero(t, r.Pools[0].Replicas)
			require.Zero(t, r.Pools[0].Reclaimable)
		})
	}
}

// A replica whose eviction was withdrawn because a pod uses it does not hold up the eviction of another, and its room
// is missing if there is no other.
func TestPlanEvictsAnotherReplicaThanTheOneInUse(t *testing.T) {
	s := evictiontest.New()
	s.Replica("data", 40)
	s.Replica("other", 40)
	s.PersistentVolume("promised", 50)
	require.Equal(t, []string{"data"}, replicaEvictions(s.Plan()))
	s.View.ReplicasInUse = map[types.UID]bool{"uid-data": true}
	r := s.Plan()
	require.Equal(t, []string{"other"}, replicaEvictions(r))
	require.Zero(t, r.Pools[0].Shortfall)
	s.View.ReplicasInUse["uid-other"] = true
	r = s.Plan()
	require.Empty(t, replicaEvictions(r))
	require.Equal(t, 31*volume.GiB, r.Pools[0].Shortfall)
	require.Contains(t, r.Pools[0].ShortfallMessage, "80 GiB in 2 replicas of datasets cannot be evicted: in use")
}

// Which replicas are evicted first, and how many: those whose eviction was requested before, then the least recently
// used. Unreferenced volumes are evicted before them.
func TestPlanOrderOfReplicas(t *testing.T) {
	s := evictiontest.New()
	s.Replica("a-newer", 10, func(v *inventory.Volume, _ *persistentvolume.Volume) { v.LastUsed = evictiontest.HoursAgo(2) })
	s.Replica("b-older", 10, func(v *inventory.Volume, _ *persistentvolume.Volume) { v.LastUsed = evictiontest.HoursAgo(9) })
	s.Replica("c-asked", 10, func(v *inventory.Volume, c *persistentvolume.Volume) {
		v.LastUsed, c.Replica.Asked = evictiontest.HoursAgo(1), evictiontest.Now
	})
	s.Volume("unwanted", unreferenced, 10, evictiontest.LastUsed(1))
	// 59 GiB are free.
	for need, want := range map[int]struct{ evicted, asked []string }{
		59: {[]string{}, []string{}},
		60: {[]string{"Promised unwanted"}, []string{}},
		69: {[]string{"Promised unwanted"}, []string{}},
		70: {[]string{}, []string{"c-asked"}}, // the unreferenced volume is evicted only when that is certain to help
		80: {[]string{}, []string{"c-asked", "b-older"}},
		90: {[]string{}, []string{"c-asked", "b-older", "a-newer"}},
		99: {[]string{}, []string{"c-asked", "b-older", "a-newer"}},
	} {
		again := *s
		again.PersistentVolume("promised", need)
		r := again.Plan()
		require.Equal(t, want.evicted, evictiontest.Evicted(r), "%d GiB are promised", need)
		require.Equal(t, want.asked, replicaEvictions(r), "%d GiB are promised", need)
		require.Zero(t, r.Pools[0].Shortfall)
	}
	s.PersistentVolume("too-much", 100)
	r := s.Plan()
	require.Empty(t, replicaEvictions(r), "data is not given up for nothing")
	require.Positive(t, r.Pools[0].Shortfall)
}

// Requested room counts as coming: no other replica is requested instead. Once the eviction is confirmed, the
// unreferenced volumes needed besides are evicted, too.
func TestPlanCountsWhatWasAskedFor(t *testing.T) {
	s := evictiontest.New()
	s.Replica("first", 30, func(_ *inventory.Volume, c *persistentvolume.Volume) {
		c.Replica.Asked, c.Replica.Unlabelled = evictiontest.Now, evictiontest.Now
	})
	s.Replica("second", 30, func(v *inventory.Volume, _ *persistentvolume.Volume) { v.LastUsed = evictiontest.HoursAgo(100) })
	s.Volume("unwanted", unreferenced, 10)
	s.PersistentVolume("promised", 65) // 29 GiB are free
	require.Equal(t, []string{"first"}, replicaEvictions(s.Plan()))
	require.Empty(t, evictiontest.Evicted(s.Plan()))

	first := &s.View.PersistentVolumes[1].Replica
	first.Evictable = evictiontest.Now
	for _, phase := range []corev1.PersistentVolumePhase{corev1.VolumeBound, corev1.VolumeReleased} {
		s.View.PersistentVolumes[1].Phase = phase
		r := s.Plan()
		require.Empty(t, replicaEvictions(r), "%s", phase)
		require.Equal(t, []string{"Promised unwanted"}, evictiontest.Evicted(r), "%s", phase)
		require.Zero(t, r.Pools[0].Shortfall)
	}
	s.View.Volumes[1].State, s.View.Volumes[1].Reclaim = unreferenced, volume.ReclaimImmediate
	r := s.Plan()
	require.Equal(t, []string{"Replica first", "Promised unwanted"}, evictiontest.Evicted(r))
	require.Contains(t, r.Evictions[0].Message, "no pod here used this replica of dataset db/vm-first, whose eviction was requested")
	require.Equal(t, "uid-of-vm-first", r.Evictions[0].Replica.OwnerUID)
}

// Confirmed room counts as coming for some minutes. If the claim is not deleted by then, the room no longer counts,
// and the shortfall reports that.
func TestPlanDoesNotCountOnWhatNeverComes(t *testing.T) {
	s := evictiontest.New()
	s.Replica("first", 60)
	s.PersistentVolume("promised", 65) // 39 GiB are free
	first := &s.View.PersistentVolumes[1].Replica
	first.Asked, first.Unlabelled, first.Evictable = evictiontest.Now, evictiontest.Now, evictiontest.Now.Add(-5*time.Minute)
	was := s.Plan().Pools[0]
	require.Zero(t, was.Shortfall)
	first.Evictable = first.Evictable.Add(-time.Second)
	is := s.Plan().Pools[0]
	require.Equal(t, 26*volume.GiB, is.Shortfall)
	require.Contains(t, is.ShortfallMessage, "60 GiB in 1 replica of a dataset were given up long ago, and their claims are still there: see their VolumeManager")
	require.Equal(t, was.Allocatable-60*volume.GiB, is.Allocatable, "nothing is promised of it")
	require.Empty(t, eviction.Steps(s.View, s.Plan()), "it cannot be taken back")

	s.Replica("second", 30)
	s.PoolNamed("flexlvm").Free += 30 * volume.GiB // as much free room as before
	require.Equal(t, []string{"second"}, replicaEvictions(s.Plan()), "another one makes the room")
	s.View.PersistentVolumes[1].Phase = corev1.VolumeReleased
	require.Empty(t, replicaEvictions(s.Plan()), "it goes after all")
}

// Neither a full pool nor other replicas evict a replica. It would be created again immediately, and evict the next
// one.
func TestPlanKeepsReplicasFromReplicas(t *testing.T) {
	s := evictiontest.New()
	s.Replica("data", 90)
	r := s.Plan()
	require.True(t, r.Pools[0].Pressure, "over the high threshold")
	require.Empty(t, replicaEvictions(r))

	asks := func(c *persistentvolume.Volume) { c.Kind = volume.Dataset }
	s.PersistentVolume("another", 20, asks)
	r = s.Plan()
	require.Empty(t, replicaEvictions(r))
	require.Positive(t, r.Pools[0].Shortfall)
	require.Contains(t, r.Pools[0].ShortfallMessage, "another for claim db/data-another")

	s.PersistentVolume("of-a-pod", 5) // 9 GiB are free, and needed for the promised replica
	r = s.Plan()
	require.Equal(t, []string{"data"}, replicaEvictions(r), "a claim gets its room")
	require.Contains(t, r.ReplicaEvictions[0].Message, "evicting replica data of dataset db/vm-data frees 90 GiB")

	s = evictiontest.New()
	s.Replica("data", 40)
	s.PersistentVolume("another", 20, asks)
	s.PersistentVolume("of-a-pod", 30)
	require.Empty(t, replicaEvictions(s.Plan()), "59 GiB are free and 50 promised")
}

// Allocatable includes the room of evictable replicas for claims once, and the replicas' own charge, which is
// released with them.
func TestReplicasInTheAccounts(t *testing.T) {
	s := evictiontest.New()
	s.Replica("data", 40)
	used := s.Plan().Pools[0]
	require.Equal(t, volume.Bytes(59+1+40+40)*volume.GiB, used.Allocatable, "free, settled, and the replica twice: it is charged")
	s.View.PodsKnown = false
	require.Equal(t, volume.Bytes(59+1+40)*volume.GiB, s.Plan().Pools[0].Allocatable)
	s.View.PodsKnown = true

	// After the confirmation, the room is about to be free. After the release of its claim, it counts for nobody
	// until the volume can be evicted.
	c := &s.View.PersistentVolumes[1]
	c.Replica.Asked, c.Replica.Unlabelled, c.Replica.Evictable = evictiontest.Now, evictiontest.Now, evictiontest.Now
	require.Equal(t, volume.Bytes(59+1+40+40)*volume.GiB, s.Plan().Pools[0].Allocatable)
	c.Phase = corev1.VolumeReleased
	require.Equal(t, volume.Bytes(59+1+40)*volume.GiB, s.Plan().Pools[0].Allocatable, "its PersistentVolume is charged still")
	s.View.Volumes[1].State, s.View.Volumes[1].Reclaim = unreferenced, volume.ReclaimImmediate
	require.Equal(t, volume.Bytes(59+1+40)*volume.GiB, s.Plan().Pools[0].Allocatable)
}

func TestSteps(t *testing.T) {
	at := evictiontest.Now.Add(-time.Minute)
	for name, tt := range map[string]struct {
		change func(*evictiontest.Scene, *persistentvolume.Volume)
		spare  bool // its room is not needed
		want   []eviction.Step
	}{
		"needed":     {want: []eviction.Step{eviction.StepAsk}},
		"not needed": {spare: true},
		"asked for":  {change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) { c.Replica.Asked = at }},
		"unlabelled": {change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) {
			c.Replica.Asked, c.Replica.Unlabelled = at, at
		}, want: []eviction.Step{eviction.StepConfirm}},
		"a clock that is behind": {change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) {
			c.Replica.Asked, c.Replica.Unlabelled = at, at.Add(-time.Hour)
		}, want: []eviction.Step{eviction.StepConfirm}},
		"confirmed": {change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) {
			c.Replica.Asked, c.Replica.Unlabelled, c.Replica.Evictable = at, at, at
		}},
		"confirmed, not needed":      {spare: true, change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) { c.Replica.Asked, c.Replica.Evictable = at, at }},
		"unlabelled, never asked":    {change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) { c.Replica.Unlabelled = at }, want: []eviction.Step{eviction.StepAsk}},
		"asked, not needed any more": {spare: true, change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) { c.Replica.Asked = at }, want: []eviction.Step{eviction.StepWithdraw}},
		"unlabelled, not needed": {spare: true, change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) {
			c.Replica.Asked, c.Replica.Unlabelled = at, at
		}, want: []eviction.Step{eviction.StepWithdraw}},
		"asked, incomplete again": {change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) {
			c.Replica.Asked, c.Replica.Complete = at, false
		}, want: []eviction.Step{eviction.StepWithdraw}},
		"asked, kept by now": {change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) {
			c.Replica.Asked, c.Replica.Policy = at, volume.EvictNever
		}, want: []eviction.Step{eviction.StepWithdraw}},
		"asked, open": {change: func(s *evictiontest.Scene, c *persistentvolume.Volume) {
			c.Replica.Asked, s.View.Volumes[1].Open = at, true
		}, want: []eviction.Step{eviction.StepWithdraw}},
		"asked, a pod has come": {change: func(s *evictiontest.Scene, c *persistentvolume.Volume) {
			c.Replica.Asked, s.View.Users = at, map[eviction.ClaimKey]string{{Namespace: "db", Name: "read-data"}: "db/p"}
		}, want: []eviction.Step{eviction.StepWithdraw}},
		"not understood": {change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) { c.Replica.Garbled = true }, want: []eviction.Step{eviction.StepWithdraw}},
		"released": {change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) {
			c.Replica.Asked, c.Phase = at, corev1.VolumeReleased
		}},
		"being deleted":          {change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) { c.Replica.Asked, c.Deleting = at, true }},
		"another cluster's":      {change: func(_ *evictiontest.Scene, c *persistentvolume.Volume) { c.Replica.Asked, c.Cluster = at, "another" }},
		"the pods are not known": {change: func(s *evictiontest.Scene, c *persistentvolume.Volume) { c.Replica.Asked, s.View.PodsKnown = at, false }},
		"blocked": {change: func(s *evictiontest.Scene, c *persistentvolume.Volume) {
			c.Replica.Asked = at
			for i := range 20 {
				s.Volume("orphan"+string(rune('a'+i)), volume.Ready, 0)
			}
		}, want: []eviction.Step{eviction.StepWithdraw}},
	} {
		t.Run(name, func(t *testing.T) {
			s := evictiontest.New()
			s.Replica("data", 40)
			if !tt.spare {
				s.PersistentVolume("promised", 90)
			}
			if tt.change != nil {
				tt.change(s, &s.View.PersistentVolumes[1])
			}
			var got []eviction.Step
			for _, m := range eviction.Steps(s.View, s.Plan()) {
				require.Equal(t, "pvc-data", m.PersistentVolume.PV)
				require.NotEmpty(t, m.Why)
				got = append(got, m.Step)
			}
			require.Equal(t, tt.want, got)
		})
	}
}
