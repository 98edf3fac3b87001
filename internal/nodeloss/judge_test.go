package nodeloss

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	lossCluster = "cluster-1"
	lossGrace   = 5 * time.Minute
)

var (
	lossStart = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	longName  = "node-3." + strings.Repeat("rack-12.", 9) + "example.org"
)

// lossVolume returns a bound flexlvm volume on a node, with policy Delete and onNodeLoss release.
func lossVolume(name, node string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	object := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name), ResourceVersion: "7",
			Labels:     map[string]string{pv.LabelNode: pv.NodeLabelValue(node)},
			Finalizers: []string{pv.Finalizer, "kubernetes.io/pv-protection"},
			Annotations: map[string]string{
				pv.AnnotationOnNodeLoss: "release", pv.AnnotationProvisionedBy: pv.Provisioner,
			},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			NodeAffinity:                  persistentvolume.NodeAffinity("host-of-" + node),
			ClaimRef:                      &corev1.ObjectReference{Namespace: "shop", Name: "claim-" + name, UID: types.UID("claim-uid-" + name)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{
				Driver: pv.Driver, Options: map[string]string{"clusterUID": lossCluster, "kind": "claim"},
			}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	for _, c := range change {
		c(object)
	}
	return object
}

// lossClaim returns the claim that a volume is bound to.
func lossClaim(object *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	ref := object.Spec.ClaimRef
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID, ResourceVersion: "5",
			Annotations: map[string]string{pv.AnnotationStorageProvisioner: pv.Provisioner},
		},
		Spec:   corev1.PersistentVolumeClaimSpec{VolumeName: object.Name},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
}

func keep(v *corev1.PersistentVolume)   { v.Annotations[pv.AnnotationOnNodeLoss] = "keep" }
func retain(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = "Retain" }
func deleted(v *corev1.PersistentVolume) {
	v.DeletionTimestamp = &metav1.Time{Time: lossStart}
}

// snapshot returns a change that makes a volume a snapshot as the CSI controller creates it.
func snapshot(t *testing.T) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		spec := volume.Spec{
			Group: "flexlvm", GroupUUID: "d4S0Zc-LpRq-Gb1x-5mPz-0hYt-9sKe-Wf2JvN", Name: "pvc-1", Size: volume.GiB, Layout: volume.Linear,
			Kind: volume.Claim, Cluster: lossCluster, Namespace: "shop",
		}
		source := persistentvolume.New(pv.Description{
			Name: "pvc-1", Node: v.Labels[pv.LabelNode], Hostname: persistentvolume.Hostnames(v)[0], Door: pv.CSI, Spec: spec, Charged: spec.Charge(),
		}, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.PersistentVolumeReclaimDelete)
		object, _, err := persistentvolume.Snapshot(source, volume.Name(v.Name), 0)
		require.NoError(t, err)
		require.NotContains(t, object.Annotations, pv.AnnotationProvisionedBy)
		object.UID, object.ResourceVersion, object.Status.Phase = v.UID, v.ResourceVersion, corev1.VolumeAvailable
		*v = *object
	}
}

func phase(p corev1.PersistentVolumePhase) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) { v.Status.Phase = p }
}

// observedOf returns an observed with the present nodes; all other nodes have been missing for the grace
// period.
func observedOf(present []string, objects ...*corev1.PersistentVolume) observed {
	s := observed{missed: map[string]time.Time{}, now: lossStart, grace: lossGrace}
	for _, name := range present {
		s.nodes = append(s.nodes, nodeIdentity{name: name, hostname: "host-of-" + name})
	}
	for _, object := range objects {
		v, ours := localVolumeOf(object, lossCluster)
		if !ours {
			continue
		}
		if object.Status.Phase == corev1.VolumeBound {
			v.claim = lossClaim(object)
		}
		s.volumes = append(s.volumes, v)
		s.missed[v.node] = lossStart.Add(-lossGrace)
	}
	return s
}

// saidOf returns the verdicts as "volume: action reason".
func saidOf(f finding) []string {
	var out []string
	for _, v := range f.verdicts {
		out = append(out, fmt.Sprintf("%s: %s %s", v.volume.object.Name, v.action, v.reason))
	}
	return out
}

func TestJudgeLossOfOneVolume(t *testing.T) {
	const nothing = ""
	tests := map[string]struct {
		change []func(*corev1.PersistentVolume)
		claim  func(*localVolume)
		want   string
		why    []string
	}{
		"release":         {want: "a: release claim ClaimReleased", why: []string{`node "node-1" (hostname "host-of-node-1") is gone`, "onNodeLoss: release", "StatefulSet"}},
		"release, Retain": {change: []func(*corev1.PersistentVolume){retain}, want: "a: release claim ClaimReleased"},
		"keep": {change: []func(*corev1.PersistentVolume){keep}, want: "a: tell NodeLost", why: []string{
			"onNodeLoss: keep", "kubectl delete pvc -n shop claim-a --wait=false",
		}},
		"keep, Retain": {change: []func(*corev1.PersistentVolume){keep, retain}, want: "a: tell NodeLost", why: []string{"kubectl delete pv a --wait=false"}},
		"no word of the class keeps": {
			change: []func(*corev1.PersistentVolume){func(v *corev1.PersistentVolume) { delete(v.Annotations, pv.AnnotationOnNodeLoss) }},
			want:   "a: tell NodeLost",
		},
		"an unknown word keeps": {
			change: []func(*corev1.PersistentVolume){func(v *corev1.PersistentVolume) { v.Annotations[pv.AnnotationOnNodeLoss] = "Release" }},
			want:   "a: tell NodeLost", why: []string{`The claim stays, as the annotation of PersistentVolume a, flexlvm.io/on-node-loss "Release": is not known; it is one of keep, release: if`},
		},
		"claim of somebody else": {claim: func(v *localVolume) { v.claim.Annotations = nil }, want: "a: tell NodeLost", why: []string{"flexlvm has not provisioned it"}},
		"claim unknown":          {claim: func(v *localVolume) { v.claim = nil }, want: nothing},
		"claim being deleted":    {claim: func(v *localVolume) { v.claim.DeletionTimestamp = &metav1.Time{Time: lossStart} }, want: nothing},
		"bound and being deleted": {
			change: []func(*corev1.PersistentVolume){deleted}, want: "a: release claim ClaimReleased",
		},
		"released":         {change: []func(*corev1.PersistentVolume){phase("Released")}, want: "a: give up VolumeGivenUp"},
		"released, keep":   {change: []func(*corev1.PersistentVolume){phase("Released"), keep}, want: "a: give up VolumeGivenUp"},
		"failed":           {change: []func(*corev1.PersistentVolume){phase("Failed")}, want: "a: give up VolumeGivenUp"},
		"released, Retain": {change: []func(*corev1.PersistentVolume){phase("Released"), retain}, want: nothing},
		"released, no policy": {change: []func(*corev1.PersistentVolume){phase("Released"), func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = ""
		}}, want: nothing},
		"released, Retain, deleted by a person": {change: []func(*corev1.PersistentVolume){phase("Released"), retain, deleted}, want: "a: give up VolumeGivenUp"},
		"deleted, for somebody else's finalizer": {change: []func(*corev1.PersistentVolume){phase("Released"), deleted, func(v *corev1.PersistentVolume) {
			v.Finalizers = []string{"example.org/theirs"}
		}}, want: nothing},
		"released, our finalizer gone": {change: []func(*corev1.PersistentVolume){phase("Released"), func(v *corev1.PersistentVolume) {
			v.Finalizers = nil
		}}, want: "a: give up VolumeGivenUp"},
		"available": {change: []func(*corev1.PersistentVolume){phase("Available")}, want: nothing},
		"pending":   {change: []func(*corev1.PersistentVolume){phase("Pending")}, want: nothing},
		"no phase":  {change: []func(*corev1.PersistentVolume){phase("")}, want: nothing},
		"other cluster": {change: []func(*corev1.PersistentVolume){func(v *corev1.PersistentVolume) {
			v.Spec.FlexVolume.Options["clusterUID"] = "cluster-2"
		}}, want: nothing},
		"no cluster":   {change: []func(*corev1.PersistentVolume){func(v *corev1.PersistentVolume) { v.Spec.FlexVolume.Options = nil }}, want: nothing},
		"other driver": {change: []func(*corev1.PersistentVolume){func(v *corev1.PersistentVolume) { v.Spec.FlexVolume.Driver = "example.org/other" }}, want: nothing},
		"not a flex":   {change: []func(*corev1.PersistentVolume){func(v *corev1.PersistentVolume) { v.Spec.FlexVolume = nil }}, want: nothing},
		"made by hand": {change: []func(*corev1.PersistentVolume){func(v *corev1.PersistentVolume) { delete(v.Annotations, pv.AnnotationProvisionedBy) }}, want: nothing},
		"made by hand, deleted": {change: []func(*corev1.PersistentVolume){phase("Available"), deleted, func(v *corev1.PersistentVolume) {
			delete(v.Annotations, pv.AnnotationProvisionedBy)
		}}, want: nothing},
		"snapshot": {change: []func(*corev1.PersistentVolume){snapshot(t)}, want: nothing},
		"snapshot, deleted": {
			change: []func(*corev1.PersistentVolume){snapshot(t), deleted}, want: "a: give up VolumeGivenUp", why: []string{"its finalizer is taken off"},
		},
		"snapshot of another cluster, deleted": {change: []func(*corev1.PersistentVolume){snapshot(t), deleted, func(v *corev1.PersistentVolume) {
			v.Spec.CSI.VolumeAttributes["clusterUID"] = "cluster-2"
		}}, want: nothing},
		"dataset": {change: []func(*corev1.PersistentVolume){func(v *corev1.PersistentVolume) { v.Spec.FlexVolume.Options["kind"] = "dataset" }}, want: "a: release claim ClaimReleased"},
		"dataset, released": {change: []func(*corev1.PersistentVolume){phase("Released"), func(v *corev1.PersistentVolume) {
			v.Spec.FlexVolume.Options["kind"] = "dataset"
		}}, want: "a: give up VolumeGivenUp"},
		"readers of a dataset, released": {change: []func(*corev1.PersistentVolume){phase("Released"), func(v *corev1.PersistentVolume) {
			v.Spec.FlexVolume.Options["kind"], v.Spec.FlexVolume.Options["readOnly"], v.Labels = "dataset", "true", nil
			v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Key = "flexlvm.io/ds-0123456789abcdef"
		}}, want: nothing},
		"without label":  {change: []func(*corev1.PersistentVolume){func(v *corev1.PersistentVolume) { v.Labels = nil }}, want: nothing},
		"tied to nobody": {change: []func(*corev1.PersistentVolume){func(v *corev1.PersistentVolume) { v.Spec.NodeAffinity = nil }}, want: nothing},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := observedOf([]string{"node-2"}, lossVolume("a", "node-1", test.change...))
			if test.claim != nil {
				test.claim(&s.volumes[0])
			}
			found := judge(s)
			require.Equal(t, test.want, strings.Join(saidOf(found), "; "))
			for _, part := range test.why {
				require.Contains(t, found.verdicts[0].why, part)
			}
		})
	}
}

func TestJudgeLossOfNodes(t *testing.T) {
	volumesOn := func(nodes ...string) (out []*corev1.PersistentVolume) {
		for _, n := range nodes {
			out = append(out, lossVolume("on-"+n[:min(6, len(n))], n))
		}
		return out
	}
	leftover := func(name, node string) *corev1.PersistentVolume {
		return lossVolume(name, node, phase("Released"), retain)
	}
	tests := map[string]struct {
		observed observed
		want     []string // verdicts
		lost     int
		doubt    string
	}{
		"all there":                        {observed: observedOf([]string{"node-1", "node-2"}, volumesOn("node-1", "node-2")...)},
		"no volumes":                       {observed: observedOf([]string{"node-1"})},
		"one of one, another carries none": {observed: observedOf([]string{"node-2"}, volumesOn("node-1")...), want: []string{"on-node-1: release claim ClaimReleased"}, lost: 1},
		"one of two":                       {observed: observedOf([]string{"node-2"}, volumesOn("node-1", "node-2")...), want: []string{"on-node-1: release claim ClaimReleased"}, lost: 1},
		"two of three": {
			observed: observedOf([]string{"node-3"}, volumesOn("node-1", "node-2", "node-3")...), lost: 2,
			want:  []string{"on-node-1: tell NodeLossInDoubt", "on-node-2: tell NodeLossInDoubt"},
			doubt: "2 of the 3 nodes that carry volumes are missing from the API at once",
		},
		"two of four": {
			observed: observedOf([]string{"node-3", "node-4"}, volumesOn("node-1", "node-2", "node-3", "node-4")...), lost: 2,
			want: []string{"on-node-1: release claim ClaimReleased", "on-node-2: release claim ClaimReleased"},
		},
		"all of two": {
			observed: observedOf([]string{"node-9"}, volumesOn("node-1", "node-2")...), lost: 2, doubt: "2 of the 2",
			want: []string{"on-node-1: tell NodeLossInDoubt", "on-node-2: tell NodeLossInDoubt"},
		},
		"no node at all": {observed: observedOf(nil, volumesOn("node-1")...), lost: 1, doubt: "no node at all", want: []string{"on-node-1: tell NodeLossInDoubt"}},
		"leftovers of nodes that went long ago are no doubt": {
			observed: observedOf([]string{"node-2", "node-3"}, append(volumesOn("node-1", "node-2", "node-3"),
				leftover("x", "old-1"), leftover("y", "old-2"), leftover("z", "old-3"))...), lost: 1,
			want: []string{"on-node-1: release claim ClaimReleased"},
		},
		"snapshots of nodes that went long ago are no doubt": {
			observed: observedOf([]string{"node-2", "node-3"}, append(volumesOn("node-1", "node-2", "node-3"),
				lossVolume("x", "old-1", snapshot(t)), lossVolume("y", "old-2", snapshot(t)), lossVolume("z", "old-3", snapshot(t)))...), lost: 1,
			want: []string{"on-node-1: release claim ClaimReleased"},
		},
		"long name there": {observed: func() observed {
			s := observedOf([]string{"node-1"}, volumesOn("node-1", longName)...)
			s.nodes = append(s.nodes, nodeIdentity{name: longName, hostname: "relabelled"})
			return s
		}()},
		"long name gone": {observed: observedOf([]string{"node-1"}, volumesOn("node-1", longName)...), want: []string{"on-node-3: release claim ClaimReleased"}, lost: 1},
		"another long name that begins alike": {
			observed: observedOf([]string{"node-1", longName + ".net"}, volumesOn("node-1", longName)...), want: []string{"on-node-3: release claim ClaimReleased"}, lost: 1,
		},
		"hostname there under another name": {observed: func() observed {
			s := observedOf([]string{"node-2"}, volumesOn("node-1", "node-2")...)
			s.nodes = append(s.nodes, nodeIdentity{name: "renamed", hostname: "host-of-node-1"})
			return s
		}()},
		"a node carries the hostname as its name": {observed: func() observed {
			s := observedOf([]string{"node-2"}, volumesOn("node-1", "node-2")...)
			s.nodes = append(s.nodes, nodeIdentity{name: "host-of-node-1"})
			return s
		}()},
		"one volume's hostname speaks for its node": {observed: func() observed {
			other := lossVolume("other", "node-1")
			other.Spec.NodeAffinity = persistentvolume.NodeAffinity("host-of-node-2")
			return observedOf([]string{"node-2"}, append(volumesOn("node-1", "node-2"), other)...)
		}()},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			found := judge(test.observed)
			require.Equal(t, test.want, saidOf(found))
			require.Len(t, found.lost, test.lost)
			require.Contains(t, found.doubt, test.doubt)
			require.Equal(t, test.doubt == "", found.doubt == "")
			for _, v := range found.verdicts {
				require.LessOrEqual(t, len(v.why), 1000)
				require.Equal(t, test.doubt == "", stillLost(v.volume.node, test.observed.nodes, test.observed.volumes))
			}
		})
	}
}

func TestJudgeLossWaitsForTheGracePeriod(t *testing.T) {
	s := observedOf([]string{"node-2", "node-3", "node-4"}, lossVolume("a", "node-1"), lossVolume("b", "node-2"), lossVolume("c", "node-3"))
	all := append([]nodeIdentity{{name: "node-1"}}, s.nodes...)
	step := func(after time.Duration, nodes []nodeIdentity, want ...string) finding {
		s.now, s.nodes = lossStart.Add(after), nodes
		found := judge(s)
		require.Equal(t, want, saidOf(found), "after %s", after)
		s.missed, s.doubted = found.missed, found.doubted
		return found
	}
	without := all[1:]
	s.missed = nil // a process that has just started
	step(0, without)
	step(lossGrace-time.Second, without)
	step(lossGrace-time.Millisecond, all) // it is back, so the grace period starts again
	step(lossGrace, without)
	step(2*lossGrace-time.Second, without)
	step(2*lossGrace, without, "a: release claim ClaimReleased")

	// A doubt starts the grace period again.
	step(2*lossGrace, all[2:], "a: tell NodeLossInDoubt")
	require.Equal(t, lossStart.Add(2*lossGrace), s.doubted)
	step(3*lossGrace-time.Second, without)
	step(3*lossGrace, without, "a: release claim ClaimReleased")
}

// Claims and volumes in the caches, which lack fields, are judged like the originals.
func TestCachesKeepWhatIsJudged(t *testing.T) {
	whole := lossVolume("a", "node-1")
	whole.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "flexlvm"}}
	want, ours := localVolumeOf(whole, lossCluster)
	require.True(t, ours)
	wantClaim := lossClaim(whole)
	require.True(t, boundTo(wantClaim, whole))

	kept, err := controlplane.Transform(whole.DeepCopy())
	require.NoError(t, err)
	got, ours := localVolumeOf(kept.(*corev1.PersistentVolume), lossCluster)
	require.True(t, ours)
	require.Equal(t, []any{want.node, want.hostnames}, []any{got.node, got.hostnames})
	on, err := got.onLoss()
	require.NoError(t, err)
	require.Equal(t, volume.OnNodeLossRelease, on)
	claim, err := controlplane.Transform(lossClaim(whole))
	require.NoError(t, err)
	require.True(t, boundTo(claim.(*corev1.PersistentVolumeClaim), whole))
	require.True(t, provisionedByUs(claim.(*corev1.PersistentVolumeClaim)))
}
