package gc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/claim"
	"github.com/flexlvm/flexlvm/internal/gc"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// replica adds a replica that may go, last used five hours ago, and its claim.
func (s *scene) replica(name string, size int, change ...func(*node.Volume, *gc.Claim)) {
	s.view.PodsKnown = true
	s.volume(name, volume.Ready, size)
	s.claim(name, size)
	v, c := &s.view.Volumes[len(s.view.Volumes)-1], &s.view.Claims[len(s.view.Claims)-1]
	v.Kind, c.Kind = volume.Dataset, volume.Dataset
	c.PV = "pvc-" + name
	c.Replica = claim.Replica{
		Dataset: "hash-of-" + name, Policy: volume.EvictLRU, Complete: true, Readers: "read-" + name, Owner: "vm-" + name, OwnerUID: "uid-of-vm-" + name,
	}
	free := v.Device
	for _, f := range change {
		f(v, c)
	}
	s.group("flexlvm").Free -= v.Device - free
}

// farewells is whom a plan asks to go.
func farewells(r gc.Result) []string {
	out := []string{}
	for _, f := range r.Farewells {
		out = append(out, string(f.Volume.Name))
	}
	return out
}

// Every single reason keeps a replica, whatever room is needed.
func TestPlanKeepsReplicas(t *testing.T) {
	const goes = true
	for name, tt := range map[string]struct {
		change func(*node.Volume, *gc.Claim)
		scene  func(*scene)
		goes   bool
	}{
		"as it should be":               {goes: goes},
		"asked for already":             {change: func(_ *node.Volume, c *gc.Claim) { c.Replica.Asked = sceneNow }, goes: goes},
		"unlabelled already":            {change: func(_ *node.Volume, c *gc.Claim) { c.Replica.Asked, c.Replica.Unlabelled = sceneNow, sceneNow }, goes: goes},
		"just old enough":               {change: func(v *node.Volume, _ *gc.Claim) { v.LastUsed = sceneNow.Add(-2 * time.Minute) }, goes: goes},
		"used a moment ago":             {change: func(v *node.Volume, _ *gc.Claim) { v.LastUsed = sceneNow.Add(-2*time.Minute + time.Second) }},
		"made a moment ago":             {change: func(v *node.Volume, _ *gc.Claim) { v.Created = sceneNow }},
		"made at an unknown time":       {change: func(v *node.Volume, _ *gc.Claim) { v.Created = time.Time{} }},
		"used at an unknown time":       {change: func(v *node.Volume, _ *gc.Claim) { v.LastUsed = time.Time{} }},
		"used in the future":            {change: func(v *node.Volume, _ *gc.Claim) { v.LastUsed = sceneNow.Add(time.Hour) }},
		"policy Never":                  {change: func(_ *node.Volume, c *gc.Claim) { c.Replica.Policy = volume.EvictNever }},
		"no policy":                     {change: func(_ *node.Volume, c *gc.Claim) { c.Replica.Policy = "" }},
		"incomplete":                    {change: func(_ *node.Volume, c *gc.Claim) { c.Replica.Complete = false }},
		"not understood":                {change: func(_ *node.Volume, c *gc.Claim) { c.Replica.Garbled = true }},
		"of no dataset":                 {change: func(_ *node.Volume, c *gc.Claim) { c.Replica = claim.Replica{} }},
		"nobody knows who reads it":     {change: func(_ *node.Volume, c *gc.Claim) { c.Replica.Readers = "" }},
		"open":                          {change: func(v *node.Volume, _ *gc.Claim) { v.Open = true }},
		"mounted":                       {change: func(v *node.Volume, _ *gc.Claim) { v.Mounts = []string{"/mnt"} }},
		"snapshots hang on it":          {change: func(v *node.Volume, _ *gc.Claim) { v.Origin = true }},
		"a problem":                     {change: func(v *node.Volume, _ *gc.Claim) { v.Problem = "odd" }},
		"creating":                      {change: func(v *node.Volume, _ *gc.Claim) { v.State = volume.Creating }},
		"retained":                      {change: func(v *node.Volume, _ *gc.Claim) { v.State = volume.Retained }},
		"the volume is a claim's":       {change: func(v *node.Volume, _ *gc.Claim) { v.Kind = volume.Claim }},
		"the volume is another's":       {change: func(v *node.Volume, _ *gc.Claim) { v.Cluster = "another" }},
		"the claim is another's":        {change: func(_ *node.Volume, c *gc.Claim) { c.Cluster = "another" }},
		"the claim is nobody's":         {change: func(_ *node.Volume, c *gc.Claim) { c.Cluster = "" }},
		"made in another group":         {change: func(_ *node.Volume, c *gc.Claim) { c.GroupUUID = "another" }},
		"policy Retain":                 {change: func(_ *node.Volume, c *gc.Claim) { c.ReclaimPolicy = corev1.PersistentVolumeReclaimRetain }},
		"no finalizer of ours":          {change: func(_ *node.Volume, c *gc.Claim) { c.HasFinalizer = false }},
		"not bound":                     {change: func(_ *node.Volume, c *gc.Claim) { c.Phase = corev1.VolumeAvailable }},
		"released by hand":              {change: func(_ *node.Volume, c *gc.Claim) { c.Phase = corev1.VolumeReleased }},
		"being deleted":                 {change: func(_ *node.Volume, c *gc.Claim) { c.Deleting = true }},
		"no claim is named":             {change: func(_ *node.Volume, c *gc.Claim) { c.ClaimName = "" }},
		"a pod reads it":                {scene: func(s *scene) { s.view.Users = map[gc.ClaimKey]string{{Namespace: "db", Name: "read-data"}: "db/p"} }},
		"a pod fills it":                {scene: func(s *scene) { s.view.Users = map[gc.ClaimKey]string{{Namespace: "db", Name: "data-data"}: "db/p"} }},
		"a pod of another namespace":    {scene: func(s *scene) { s.view.Users = map[gc.ClaimKey]string{{Namespace: "x", Name: "read-data"}: "x/p"} }, goes: goes},
		"the pods are not known":        {scene: func(s *scene) { s.view.PodsKnown = false }},
		"in half a group":               {scene: func(s *scene) { s.group("flexlvm").Missing = 1 }},
		"unreadable's name":             {scene: func(s *scene) { s.view.Unreadable = []string{"data"} }},
		"the cluster is not known":      {scene: func(s *scene) { s.view.Cluster = "" }},
		"another claim names it":        {scene: func(s *scene) { s.claim("data", 1) }},
		"another claim, given up":       {scene: func(s *scene) { s.claim("data", 1, func(c *gc.Claim) { c.Phase = corev1.VolumeReleased }) }},
		"in another group, of its name": {scene: func(s *scene) { s.claim("data", 1, func(c *gc.Claim) { c.Group = "other" }) }, goes: goes},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			change := func(v *node.Volume, c *gc.Claim) {
				if tt.change != nil {
					tt.change(v, c)
				}
			}
			s.replica("data", 40, change)
			s.claim("promised", 90)
			if tt.scene != nil {
				tt.scene(s)
			}
			r := s.plan()
			require.Empty(t, evicted(r), "a replica never goes at once")
			if tt.goes {
				require.Equal(t, []string{"data"}, farewells(r))
				require.Equal(t, 40*volume.GiB, r.Pools[0].Replicas)
				require.Equal(t, 40*volume.GiB, r.Pools[0].Reclaimable)
				return
			}
			require.Empty(t, farewells(r))
			require.Zero(t, r.Pools[0].Replicas)
			require.Zero(t, r.Pools[0].Reclaimable)
		})
	}
}

// Which go first, and how many: those that were asked for, then the least recently
// used, and nothing unreferenced stays for their sake.
func TestPlanOrderOfReplicas(t *testing.T) {
	s := newScene()
	s.replica("a-newer", 10, func(v *node.Volume, _ *gc.Claim) { v.LastUsed = hoursAgo(2) })
	s.replica("b-older", 10, func(v *node.Volume, _ *gc.Claim) { v.LastUsed = hoursAgo(9) })
	s.replica("c-asked", 10, func(v *node.Volume, c *gc.Claim) { v.LastUsed, c.Replica.Asked = hoursAgo(1), sceneNow })
	s.volume("unwanted", unreferenced, 10, lastUsed(1))
	// 59 GiB are free; 10 more each time.
	for need, want := range map[int]struct{ evicted, asked []string }{
		59: {[]string{}, []string{}},
		60: {[]string{"Promised unwanted"}, []string{}},
		69: {[]string{"Promised unwanted"}, []string{}},
		70: {[]string{}, []string{"c-asked"}}, // the unwanted one goes when that is sure to help
		80: {[]string{}, []string{"c-asked", "b-older"}},
		90: {[]string{}, []string{"c-asked", "b-older", "a-newer"}},
		99: {[]string{}, []string{"c-asked", "b-older", "a-newer"}},
	} {
		again := *s
		again.claim("promised", need)
		r := again.plan()
		require.Equal(t, want.evicted, evicted(r), "%d GiB are promised", need)
		require.Equal(t, want.asked, farewells(r), "%d GiB are promised", need)
		require.Zero(t, r.Pools[0].Shortfall)
	}
	s.claim("too-much", 100)
	r := s.plan()
	require.Empty(t, farewells(r), "data is not given up for nothing")
	require.Positive(t, r.Pools[0].Shortfall)
}

// Room that was asked for counts as coming: no other is asked in its stead, and
// once it is past recall the rest goes too.
func TestPlanCountsWhatWasAskedFor(t *testing.T) {
	s := newScene()
	s.replica("first", 30, func(_ *node.Volume, c *gc.Claim) { c.Replica.Asked, c.Replica.Unlabelled = sceneNow, sceneNow })
	s.replica("second", 30, func(v *node.Volume, _ *gc.Claim) { v.LastUsed = hoursAgo(100) })
	s.volume("unwanted", unreferenced, 10)
	s.claim("promised", 65) // 29 GiB are free
	require.Equal(t, []string{"first"}, farewells(s.plan()))
	require.Empty(t, evicted(s.plan()))

	first := &s.view.Claims[1].Replica
	first.Evictable = sceneNow
	for _, phase := range []corev1.PersistentVolumePhase{corev1.VolumeBound, corev1.VolumeReleased} {
		s.view.Claims[1].Phase = phase
		r := s.plan()
		require.Empty(t, farewells(r), "%s", phase)
		require.Equal(t, []string{"Promised unwanted"}, evicted(r), "%s", phase)
		require.Zero(t, r.Pools[0].Shortfall)
	}
	s.view.Volumes[1].State, s.view.Volumes[1].Reclaim = unreferenced, volume.ReclaimImmediate
	r := s.plan()
	require.Equal(t, []string{"Replica first", "Promised unwanted"}, evicted(r))
	require.Contains(t, r.Evictions[0].Message, "no pod here used this replica of dataset db/vm-first, which was asked to go")
	require.Equal(t, "uid-of-vm-first", r.Evictions[0].Replica.OwnerUID)
}

// What is past recall counts as coming for some minutes; a claim that nobody deletes
// then gives no room, and people are told.
func TestPlanDoesNotCountOnWhatNeverComes(t *testing.T) {
	s := newScene()
	s.replica("first", 60)
	s.claim("promised", 65) // 39 GiB are free
	first := &s.view.Claims[1].Replica
	first.Asked, first.Unlabelled, first.Evictable = sceneNow, sceneNow, sceneNow.Add(-5*time.Minute)
	was := s.plan().Pools[0]
	require.Zero(t, was.Shortfall)
	first.Evictable = first.Evictable.Add(-time.Second)
	is := s.plan().Pools[0]
	require.Equal(t, 26*volume.GiB, is.Shortfall)
	require.Contains(t, is.ShortfallMessage, "60 GiB in 1 replica of a dataset were given up long ago, and their claims are still there: see their VolumeManager")
	require.Equal(t, was.Allocatable-60*volume.GiB, is.Allocatable, "nothing is promised of it")
	require.Empty(t, gc.Steps(s.view, s.plan()), "it cannot be taken back")

	s.replica("second", 30)
	s.group("flexlvm").Free += 30 * volume.GiB // as before
	require.Equal(t, []string{"second"}, farewells(s.plan()), "another one makes the room")
	s.view.Claims[1].Phase = corev1.VolumeReleased
	require.Empty(t, farewells(s.plan()), "it goes after all")
}

// Neither a pool that is full, nor other replicas drive one out: it would be made
// anew at once, and drive the next one out.
func TestPlanKeepsReplicasFromReplicas(t *testing.T) {
	s := newScene()
	s.replica("data", 90)
	r := s.plan()
	require.True(t, r.Pools[0].Pressure, "over the high threshold")
	require.Empty(t, farewells(r))

	asks := func(c *gc.Claim) { c.Kind = volume.Dataset }
	s.claim("another", 20, asks)
	r = s.plan()
	require.Empty(t, farewells(r))
	require.Positive(t, r.Pools[0].Shortfall)
	require.Contains(t, r.Pools[0].ShortfallMessage, "another for claim db/data-another")

	s.claim("of-a-pod", 5) // 9 GiB are free, and are the replica's that is to be made
	r = s.plan()
	require.Equal(t, []string{"data"}, farewells(r), "a claim gets its room")
	require.Contains(t, r.Farewells[0].Message, "replica data of dataset db/vm-data gives back 90 GiB")

	s = newScene()
	s.replica("data", 40)
	s.claim("another", 20, asks)
	s.claim("of-a-pod", 30)
	require.Empty(t, farewells(s.plan()), "59 GiB are free and 50 promised")
}

// What may be promised: room that replicas hold is there for whoever is not one of
// them, once, and their own charge is given back with them.
func TestReplicasInTheAccounts(t *testing.T) {
	s := newScene()
	s.replica("data", 40)
	used := s.plan().Pools[0]
	require.Equal(t, volume.Bytes(59+1+40+40)*volume.GiB, used.Allocatable, "free, settled, and the replica twice: it is charged")
	s.view.PodsKnown = false
	require.Equal(t, volume.Bytes(59+1+40)*volume.GiB, s.plan().Pools[0].Allocatable)
	s.view.PodsKnown = true

	// Past recall: about to be free. Given up: nobody's until it can be evicted.
	c := &s.view.Claims[1]
	c.Replica.Asked, c.Replica.Unlabelled, c.Replica.Evictable = sceneNow, sceneNow, sceneNow
	require.Equal(t, volume.Bytes(59+1+40+40)*volume.GiB, s.plan().Pools[0].Allocatable)
	c.Phase = corev1.VolumeReleased
	require.Equal(t, volume.Bytes(59+1+40)*volume.GiB, s.plan().Pools[0].Allocatable, "its PersistentVolume is charged still")
	s.view.Volumes[1].State, s.view.Volumes[1].Reclaim = unreferenced, volume.ReclaimImmediate
	require.Equal(t, volume.Bytes(59+1+40)*volume.GiB, s.plan().Pools[0].Allocatable)
}

func TestSteps(t *testing.T) {
	at := sceneNow.Add(-time.Minute)
	for name, tt := range map[string]struct {
		change func(*scene, *gc.Claim)
		spare  bool // its room is not needed
		want   []gc.Step
	}{
		"needed":                     {want: []gc.Step{gc.StepAsk}},
		"not needed":                 {spare: true},
		"asked for":                  {change: func(_ *scene, c *gc.Claim) { c.Replica.Asked = at }},
		"unlabelled":                 {change: func(_ *scene, c *gc.Claim) { c.Replica.Asked, c.Replica.Unlabelled = at, at }, want: []gc.Step{gc.StepConfirm}},
		"a clock that is behind":     {change: func(_ *scene, c *gc.Claim) { c.Replica.Asked, c.Replica.Unlabelled = at, at.Add(-time.Hour) }, want: []gc.Step{gc.StepConfirm}},
		"past recall":                {change: func(_ *scene, c *gc.Claim) { c.Replica.Asked, c.Replica.Unlabelled, c.Replica.Evictable = at, at, at }},
		"past recall, not needed":    {spare: true, change: func(_ *scene, c *gc.Claim) { c.Replica.Asked, c.Replica.Evictable = at, at }},
		"unlabelled, never asked":    {change: func(_ *scene, c *gc.Claim) { c.Replica.Unlabelled = at }, want: []gc.Step{gc.StepAsk}},
		"asked, not needed any more": {spare: true, change: func(_ *scene, c *gc.Claim) { c.Replica.Asked = at }, want: []gc.Step{gc.StepWithdraw}},
		"unlabelled, not needed":     {spare: true, change: func(_ *scene, c *gc.Claim) { c.Replica.Asked, c.Replica.Unlabelled = at, at }, want: []gc.Step{gc.StepWithdraw}},
		"asked, incomplete again":    {change: func(_ *scene, c *gc.Claim) { c.Replica.Asked, c.Replica.Complete = at, false }, want: []gc.Step{gc.StepWithdraw}},
		"asked, kept by now":         {change: func(_ *scene, c *gc.Claim) { c.Replica.Asked, c.Replica.Policy = at, volume.EvictNever }, want: []gc.Step{gc.StepWithdraw}},
		"asked, open": {change: func(s *scene, c *gc.Claim) {
			c.Replica.Asked, s.view.Volumes[1].Open = at, true
		}, want: []gc.Step{gc.StepWithdraw}},
		"asked, a pod has come": {change: func(s *scene, c *gc.Claim) {
			c.Replica.Asked, s.view.Users = at, map[gc.ClaimKey]string{{Namespace: "db", Name: "read-data"}: "db/p"}
		}, want: []gc.Step{gc.StepWithdraw}},
		"not understood":         {change: func(_ *scene, c *gc.Claim) { c.Replica.Garbled = true }, want: []gc.Step{gc.StepWithdraw}},
		"released":               {change: func(_ *scene, c *gc.Claim) { c.Replica.Asked, c.Phase = at, corev1.VolumeReleased }},
		"being deleted":          {change: func(_ *scene, c *gc.Claim) { c.Replica.Asked, c.Deleting = at, true }},
		"another cluster's":      {change: func(_ *scene, c *gc.Claim) { c.Replica.Asked, c.Cluster = at, "another" }},
		"the pods are not known": {change: func(s *scene, c *gc.Claim) { c.Replica.Asked, s.view.PodsKnown = at, false }},
		"blocked": {change: func(s *scene, c *gc.Claim) {
			c.Replica.Asked = at
			for i := range 20 {
				s.volume("orphan"+string(rune('a'+i)), volume.Ready, 0)
			}
		}, want: []gc.Step{gc.StepWithdraw}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			s.replica("data", 40)
			if !tt.spare {
				s.claim("promised", 90)
			}
			if tt.change != nil {
				tt.change(s, &s.view.Claims[1])
			}
			var got []gc.Step
			for _, m := range gc.Steps(s.view, s.plan()) {
				require.Equal(t, "pvc-data", m.Claim.PV)
				require.NotEmpty(t, m.Why)
				got = append(got, m.Step)
			}
			require.Equal(t, tt.want, got)
		})
	}
}
