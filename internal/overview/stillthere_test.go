package overview_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// leftBy returns a PersistentVolume that a claim shop/data with the UID "old" left behind.
func leftBy(name string, change ...func(*corev1.PersistentVolume)) corev1.PersistentVolume {
	object := ledgertest.PersistentVolume("a", ledgertest.Want(name, volume.GiB), boundTo("data"))
	object.Spec.ClaimRef.UID, object.Status.Phase, object.CreationTimestamp = "old", corev1.VolumeReleased, metav1.NewTime(now)
	for _, f := range change {
		f(object)
	}
	return *object
}

// A PersistentVolume that a claim uses is not offered for undelete. One that the claim left behind is,
// whichever driver it has.
func TestStillThere(t *testing.T) {
	phase := func(p corev1.PersistentVolumePhase) func(*corev1.PersistentVolume) {
		return func(object *corev1.PersistentVolume) { object.Status.Phase = p }
	}
	claim := func(has string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "new"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: has}}
	}
	replaces := func(claimUID string) func(*corev1.PersistentVolume) {
		return func(o *corev1.PersistentVolume) {
			o.Annotations[pv.AnnotationReplaces] = fmt.Sprintf(`{"name":"pvc-9","claimUID":%q,"reclaimPolicy":"Delete"}`, claimUID)
			o.Spec.ClaimRef.UID = "uid-of-pvc-9"
		}
	}
	mine := claim("")
	mine.UID = "old"
	terminating := claim("pvc-9")
	terminating.DeletionTimestamp = &metav1.Time{Time: now}
	for name, tt := range map[string]struct {
		object corev1.PersistentVolume
		claim  *corev1.PersistentVolumeClaim
		node   string
		there  bool
	}{
		"released":                                  {object: leftBy("pvc-9"), there: true},
		"released, and the claim is there anew":     {object: leftBy("pvc-9"), claim: claim("pvc-10"), there: true},
		"failed":                                    {object: leftBy("pvc-9", phase(corev1.VolumeFailed)), there: true},
		"its claim has gone just now":               {object: leftBy("pvc-9", phase(corev1.VolumeBound)), there: true},
		"its claim is being deleted":                {object: leftBy("pvc-9", phase(corev1.VolumeBound)), claim: terminating, there: true},
		"waits for the claim":                       {object: leftBy("pvc-9", phase(corev1.VolumeAvailable)), there: true},
		"of the other driver":                       {object: leftBy("pvc-9", func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Driver = "example.org/other"; o.Labels = nil }), there: true},
		"that cannot be read":                       {object: leftBy("pvc-9", func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options["size"] = "?" }), there: true},
		"in use":                                    {object: leftBy("pvc-9", phase(corev1.VolumeBound)), claim: mine},
		"about to be used":                          {object: leftBy("pvc-9", phase(corev1.VolumeAvailable)), claim: claim("pvc-9")},
		"stands for one in use that is made anew":   {object: leftBy("pvc-9-door", replaces("new")), claim: claim("pvc-9")},
		"stands for one of a claim that is gone":    {object: leftBy("pvc-9-door", replaces("old")), claim: claim("pvc-10"), there: true},
		"stands for one, and nobody can tell whose": {object: leftBy("pvc-9-door", func(o *corev1.PersistentVolume) { o.Annotations[pv.AnnotationReplaces] = "{}" }), claim: claim("pvc-9"), there: true},
		"of another claim":                          {object: leftBy("pvc-9", func(o *corev1.PersistentVolume) { o.Spec.ClaimRef.Name = "logs" })},
		"of another namespace":                      {object: leftBy("pvc-9", func(o *corev1.PersistentVolume) { o.Spec.ClaimRef.Namespace = "thief" })},
		"of no claim":                               {object: leftBy("pvc-9", func(o *corev1.PersistentVolume) { o.Spec.ClaimRef = nil })},
		"on another node than the one that is said": {object: leftBy("pvc-9"), node: "b"},
		"on the node that is said":                  {object: leftBy("pvc-9"), node: "a", there: true},
	} {
		got := overview.StillThere([]corev1.PersistentVolume{tt.object}, tt.claim, overview.Wanted{Namespace: "shop", Claim: "data", Node: tt.node})
		require.Equal(t, tt.there, len(got) == 1, name)
	}
	older := leftBy("pvc-8", func(o *corev1.PersistentVolume) { o.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour)) })
	got := overview.StillThere([]corev1.PersistentVolume{older, leftBy("pvc-9")}, nil, overview.Wanted{Namespace: "shop", Claim: "data"})
	require.Equal(t, "pvc-9", got[0].Name, "the newest first")
}

// A volume is identified by its claim's name alone only if the claim left no other volume.
func TestCheckUnambiguous(t *testing.T) {
	w := overview.Wanted{Namespace: "shop", Claim: "data"}
	found, err := overview.Find([]flexlvmv1.NodeStorage{node("a", deleted("data"))}, w)
	require.NoError(t, err)
	require.NoError(t, overview.CheckUnambiguous(found, w, nil))
	require.NoError(t, overview.CheckUnambiguous(found, w, []corev1.PersistentVolume{leftBy("released-0")}), "it is the PersistentVolume of the volume that was found")
	w.Volume = "released-0"
	require.NoError(t, overview.CheckUnambiguous(found, w, []corev1.PersistentVolume{leftBy("pvc-9")}), "it was named")
	w.Volume = ""
	err = overview.CheckUnambiguous(found, w, []corev1.PersistentVolume{leftBy("released-0"), leftBy("pvc-9")})
	require.EqualError(t, err, `claim shop/data had several volumes. To use the released one, give:
  --volume released-0 (node a, claim data, 8 GiB, unreferenced since 2026-11-19 22:00:00Z)
These PersistentVolumes of the claim still exist, and no claim uses them:
  PersistentVolume pvc-9 (Released, reclaim policy Delete, created 2026-11-20 03:00:00Z)
To use the volume of one of these PersistentVolumes, protect it immediately with kubectl patch pv NAME -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}', and then follow docs/undelete.md (when the PersistentVolume is still there)`)
	kept := leftBy("pvc-9", func(o *corev1.PersistentVolume) {
		o.Spec.PersistentVolumeReclaimPolicy, o.DeletionTimestamp = corev1.PersistentVolumeReclaimRetain, &metav1.Time{Time: now}
	})
	err = overview.CheckUnambiguous(found, w, []corev1.PersistentVolume{kept})
	require.ErrorContains(t, err, "pvc-9 (Released, being deleted, reclaim policy Retain, ")
	require.NotContains(t, err.Error(), "kubectl patch")
	other := leftBy("released-0", func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options["volumeGroup"] = "fast" })
	require.Error(t, overview.CheckUnambiguous(found, w, []corev1.PersistentVolume{other}), "it is of another group")
	require.Empty(t, overview.Kept(nil))
}

// A node's report lists a limited number of released volumes. An unlisted volume may be newer than one
// that is listed because it is evicted next, or than one of another node.
func TestFindAmongTheUnlisted(t *testing.T) {
	long := func(more int32) func(*flexlvmv1.NodeStorageStatus) {
		return func(s *flexlvmv1.NodeStorageStatus) {
			s.Released = nil
			for i := range flexlvmv1.LastReleased + 1 {
				s.Released = append(s.Released, flexlvmv1.ReleasedVolume{
					Pool: "flexlvm", Name: fmt.Sprintf("v-%d", i), Namespace: "shop", FilesystemUUID: "fs",
					Origin: &flexlvmv1.ReleasedOrigin{Claim: fmt.Sprintf("claim-%d", i)}, Released: metav1.NewTime(now.Add(-time.Duration(i) * time.Minute)),
				})
			}
			s.ReleasedCount = int32(len(s.Released)) + more
		}
	}
	// The volumes of a directory pool that cannot be inspected occupy places in the list.
	beside := func(seen int) func(*flexlvmv1.NodeStorageStatus) {
		return func(s *flexlvmv1.NodeStorageStatus) {
			long(0)(s)
			s.Released = s.Released[:seen]
			s.Pools = append(s.Pools, flexlvmv1.Pool{Name: "flexlvm:dirs", Layout: string(volume.Directory), Closed: "its device is not there"})
			for i := range 50 {
				s.Released = append(s.Released, flexlvmv1.ReleasedVolume{
					Pool: "flexlvm:dirs", Name: fmt.Sprintf("d-%d", i), Namespace: "shop", FilesystemUUID: "fs",
					Origin: &flexlvmv1.ReleasedOrigin{Claim: fmt.Sprintf("unseen-%d", i)}, Released: metav1.NewTime(now.Add(-time.Duration(i) * time.Hour)),
				})
			}
			s.ReleasedCount = 110
		}
	}
	// The same for a volume group that is not seen.
	notSeen := func(s *flexlvmv1.NodeStorageStatus) {
		s.Pools = s.Pools[:1]
		for i := range s.Released {
			s.Released[i].Pool = strings.Replace(s.Released[i].Pool, "flexlvm:dirs", "flexlvm-late", 1)
		}
	}
	last, next := fmt.Sprintf("claim-%d", flexlvmv1.LastReleased-1), fmt.Sprintf("claim-%d", flexlvmv1.LastReleased)
	for _, tt := range []struct {
		name string
		w    overview.Wanted
		all  []flexlvmv1.NodeStorage
		says string
	}{
		{"all are listed", overview.Wanted{Claim: next}, []flexlvmv1.NodeStorage{node("a", long(0))}, ""},
		{"it is among the last", overview.Wanted{Claim: last}, []flexlvmv1.NodeStorage{node("a", long(7))}, ""},
		{"it is listed because it goes next", overview.Wanted{Claim: next}, []flexlvmv1.NodeStorage{node("a", long(7))}, "node a has 7 released volumes that it does not list, and one of them may be a later volume of claim shop/" + next},
		{"it is named", overview.Wanted{Volume: fmt.Sprintf("v-%d", flexlvmv1.LastReleased)}, []flexlvmv1.NodeStorage{node("a", long(7))}, ""},
		{"another node has newer ones", overview.Wanted{Claim: "data"}, []flexlvmv1.NodeStorage{node("a", deleted("data")), node("b", long(7))}, "node b has 7 released volumes that it does not list"},
		{"its node is said", overview.Wanted{Claim: "data", Node: "a"}, []flexlvmv1.NodeStorage{node("a", deleted("data")), node("b", long(7))}, ""},
		{"nothing is known of what another does not list", overview.Wanted{Claim: "data"}, []flexlvmv1.NodeStorage{node("a", deleted("data")), node("b", long(0), func(s *flexlvmv1.NodeStorageStatus) { s.Released = nil })}, "node b has 41 released volumes"},
		{"it is in a pool that is not seen", overview.Wanted{Claim: "unseen-9"}, []flexlvmv1.NodeStorage{node("a", beside(28))}, "node a has 32 released volumes that it does not list"},
		{"it is later than all that are not listed beside such a pool", overview.Wanted{Claim: "claim-27"}, []flexlvmv1.NodeStorage{node("a", beside(28))}, ""},
		{"it is in a volume group that is not seen", overview.Wanted{Claim: "unseen-9"}, []flexlvmv1.NodeStorage{node("a", beside(28), notSeen)}, "node a does not see volume group flexlvm-late now"},
		{"such a group takes all places", overview.Wanted{Claim: "data"}, []flexlvmv1.NodeStorage{node("a", beside(0), notSeen), node("b", deleted("data"))}, "node a has 60 released volumes that it does not list"},
		{"such a pool takes all places", overview.Wanted{Claim: "unseen-0"}, []flexlvmv1.NodeStorage{node("a", beside(0))}, "node a has 60 released volumes that it does not list"},
	} {
		tt.w.Namespace = "shop"
		_, err := overview.Find(tt.all, tt.w)
		if tt.says == "" {
			require.NoError(t, err, tt.name)
			continue
		}
		require.ErrorContains(t, err, tt.says, tt.name)
		require.ErrorContains(t, err, "--volume", tt.name)
	}
}
