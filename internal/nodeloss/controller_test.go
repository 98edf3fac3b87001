package nodeloss

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/flexlvm/flexlvm/internal/pv"
)

var hereIsLeft = []string{"here Bound", "claim-here"}

func TestNodeLossReleases(t *testing.T) {
	r := lossWorld(t)
	require.NoError(t, r.round(0))
	require.NoError(t, r.round(lossGrace-time.Second))
	require.Empty(t, r.calls, "the caches are enough while there is nothing to do")
	require.Zero(t, r.metric("flexlvm_provisioner_lost_nodes"))

	require.NoError(t, r.round(time.Second))
	require.Equal(t, []string{"list nodes", "get nodes", "get persistentvolumes", "delete persistentvolumeclaims", "list pods"}, r.calls)
	require.Equal(t, []string{"a Bound", "here Bound", "claim-here"}, r.left())
	require.Equal(t, []string{"ClaimReleased volume a", "ClaimReleased claim claim-a", "ClaimReleased pod uses-claim-a"}, r.said)
	require.Equal(t, 1.0, r.metric("flexlvm_provisioner_lost_nodes"))
	require.Equal(t, 1.0, r.metric("flexlvm_provisioner_node_loss_released_claims_total"))

	r.calls, r.said = nil, nil
	require.NoError(t, r.round(time.Second))
	require.Equal(t, []string{"list nodes", "get nodes", "patch persistentvolumes", "delete persistentvolumes"}, r.calls)
	require.Equal(t, hereIsLeft, r.left())
	require.Equal(t, []string{"VolumeGivenUp volume a"}, r.said)

	r.calls = nil
	require.NoError(t, r.round(time.Hour))
	require.Empty(t, r.calls)
	require.Zero(t, r.metric("flexlvm_provisioner_lost_nodes"))
}

func TestNodeLossKeeps(t *testing.T) {
	r := lossWorld(t, keep)
	require.NoError(t, r.round(0))
	for range 120 { // two hours
		require.NoError(t, r.round(time.Minute))
	}
	require.Equal(t, []string{"a Bound", "here Bound", "claim-a", "claim-here"}, r.left())
	once := []string{"NodeLost volume a", "NodeLost claim claim-a"}
	require.Equal(t, append(once, once...), r.said, "once an hour")
	require.Equal(t, []string{"list nodes", "list nodes"}, r.calls)

	// Its owner deletes the claim.
	require.NoError(t, r.client.Tracker().Delete(claimsResource, "shop", "claim-a"))
	require.NoError(t, r.round(0))
	require.Equal(t, hereIsLeft, r.left())
}

func TestNodeLossRetains(t *testing.T) {
	r := lossWorld(t, retain)
	require.NoError(t, r.round(0))
	require.NoError(t, r.round(lossGrace))
	require.NoError(t, r.round(lossGrace))
	require.Equal(t, []string{"a Released", "here Bound", "claim-here"}, r.left())
}

func TestNodeLossTakesTheFinalizerOffWhatIsDeleted(t *testing.T) {
	r := lossWorld(t, phase("Released"), retain, deleted)
	require.NoError(t, r.round(0))
	require.NoError(t, r.round(lossGrace))
	require.Equal(t, []string{"list nodes", "get nodes", "patch persistentvolumes"}, r.calls)
	require.Equal(t, []string{"a Released let go", "here Bound", "claim-here"}, r.left(), "the API server removes it once the others have let go")
}

// A snapshot stays until its VolumeSnapshot is deleted, even if nothing else is left of its node, which does not count
// as lost meanwhile.
func TestNodeLossGivesUpDeletedSnapshots(t *testing.T) {
	r := lossWorld(t, snapshot(t))
	for range 3 {
		require.NoError(t, r.round(lossGrace))
	}
	require.Equal(t, []string{"a Available", "here Bound", "claim-here"}, r.left())
	require.Empty(t, r.calls)
	require.Empty(t, r.said)
	require.Zero(t, r.metric("flexlvm_provisioner_lost_nodes"))

	v := r.volumes()[0]
	require.Equal(t, "a", v.Name)
	deleted(&v)
	require.NoError(t, r.client.Tracker().Update(volumesResource, &v, ""))
	require.NoError(t, r.round(0))
	require.Empty(t, r.calls)
	require.NoError(t, r.round(lossGrace))
	require.Equal(t, []string{"list nodes", "get nodes", "patch persistentvolumes"}, r.calls)
	require.Equal(t, []string{"VolumeGivenUp volume a"}, r.said)

	require.Equal(t, []string{"a Available let go", "here Bound", "claim-here"}, r.left())
}

func TestNodeLossGoesByTheAPIServerNotByTheCache(t *testing.T) {
	back := func(r *rig) { require.NoError(r.t, r.client.Tracker().Add(lossNode("node-1"))) }
	tests := map[string]struct {
		change func(*rig)
		calls  []string
		err    string
	}{
		"the node is back and the cache has not seen it": {change: back, calls: []string{"list nodes"}},
		"the node is back before the last question": {calls: []string{"list nodes", "get nodes"}, change: func(r *rig) {
			r.fault = func(call int) (error, bool) {
				if call == 1 {
					back(r)
				}
				return nil, false
			}
		}},
		"the API server has lost its memory": {
			calls: []string{"list nodes"}, err: "nothing is done about lost nodes: list nodes: the API server knows no node at all",
			change: func(r *rig) {
				require.NoError(r.t, r.client.Tracker().Delete(nodesResource, "", "node-2"))
				require.NoError(r.t, r.client.Tracker().Delete(nodesResource, "", "node-9"))
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := lossWorld(t)
			require.NoError(t, r.round(0))
			r.now = r.now.Add(lossGrace)
			test.change(r)
			if err := r.again(); test.err != "" {
				require.EqualError(t, err, test.err)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, test.calls, r.calls)
			require.Empty(t, r.said)
		})
	}
}

// A person may set the volume to keep after a round has judged it: the round then changes nothing.
func TestNodeLossKeepsWhatIsKeptMeanwhile(t *testing.T) {
	r := lossWorld(t)
	require.NoError(t, r.round(0))
	r.fault = func(call int) (error, bool) {
		if call == 1 { // the check that the node is still gone
			kept := lossVolume("a", "node-1", keep)
			kept.ResourceVersion += "1"
			require.NoError(t, r.client.Tracker().Update(volumesResource, kept, ""))
		}
		return nil, false
	}
	require.NoError(t, r.round(lossGrace))
	require.Equal(t, []string{"list nodes", "get nodes", "get persistentvolumes"}, r.calls)
	require.Equal(t, []string{"a Bound", "here Bound", "claim-a", "claim-here"}, r.left())
	require.Empty(t, r.said)
	r.fault = nil
	require.NoError(t, r.round(time.Second))
	require.Equal(t, []string{"NodeLost volume a", "NodeLost claim claim-a"}, r.said, "the next round goes by it")
	require.Len(t, r.left(), 4)
}

func TestNodeLossStartsAgainAfterARestart(t *testing.T) {
	r := lossWorld(t)
	require.NoError(t, r.round(0))
	r.now = r.now.Add(10 * lossGrace)
	r.restart()
	require.NoError(t, r.round(0))
	require.NoError(t, r.round(lossGrace-time.Second))
	require.Empty(t, r.calls)
}

func TestNodeLossDoubts(t *testing.T) {
	b := lossVolume("b", "node-3")
	r := lossWorld(t)
	require.NoError(t, r.client.Tracker().Add(b))
	require.NoError(t, r.client.Tracker().Add(lossClaim(b)))
	require.NoError(t, r.round(0))
	require.NoError(t, r.round(lossGrace))
	require.NoError(t, r.round(time.Minute))
	require.Len(t, r.left(), 6)
	require.Equal(t, []string{
		"NodeLossInDoubt volume a", "NodeLossInDoubt claim claim-a", "NodeLossInDoubt volume b", "NodeLossInDoubt claim claim-b",
	}, r.said)
	require.Equal(t, 1.0, r.metric("flexlvm_provisioner_node_loss_in_doubt"))

	require.NoError(t, r.client.Tracker().Add(lossNode("node-3")))
	require.NoError(t, r.round(time.Minute))
	require.Zero(t, r.metric("flexlvm_provisioner_node_loss_in_doubt"))
	require.Len(t, r.left(), 6)
	require.NoError(t, r.round(lossGrace))
	require.NoError(t, r.round(time.Minute))
	require.Equal(t, []string{"b Bound", "here Bound", "claim-b", "claim-here"}, r.left())
}

// A claim that is not the one that was judged, because it was recreated, stays, and so does its volume.
func TestNodeLossHoldsToWhatItHasSeen(t *testing.T) {
	r := lossWorld(t)
	require.NoError(t, r.round(0))
	r.now = r.now.Add(lossGrace)
	anew := lossClaim(lossVolume("a", "node-1"))
	anew.UID = "made-anew"
	require.NoError(t, r.client.Tracker().Update(claimsResource, anew, "shop"))
	require.ErrorContains(t, r.again(), `delete claim shop/claim-a of lost node "node-1"`)
	require.Len(t, r.left(), 4)
	require.Empty(t, r.said)
	require.NoError(t, r.round(0), "the volume is not bound to this claim")
	require.Len(t, r.left(), 4)
}

// Whichever call fails, whether or not the API server has carried it out, and even if the process is killed at
// that point, later rounds complete the release, and the volume of the existing node stays.
func TestNodeLossConvergesFromEveryFault(t *testing.T) {
	for _, kind := range []struct {
		name             string
		done, restarting bool
	}{{"refused", false, false}, {"done and not answered", true, false}, {"killed before", false, true}, {"killed after", true, true}} {
		for at := range 9 { // the calls of TestNodeLossReleases
			t.Run(fmt.Sprintf("%s at call %d", kind.name, at), func(t *testing.T) {
				r := lossWorld(t)
				broken := false
				r.fault = func(call int) (error, bool) {
					if broken = broken || call == at; call != at {
						return nil, false
					}
					return apierrors.NewServiceUnavailable("away"), kind.done
				}
				require.NoError(t, r.round(0))
				for range 8 {
					before := broken
					err := r.round(lossGrace)
					if broken == before {
						require.NoError(t, err)
					} else if kind.restarting {
						r.restart()
					}
				}
				require.True(t, broken)
				require.Equal(t, hereIsLeft, r.left())
			})
		}
	}
}

// A lost node with many volumes costs in each round one list of nodes, a GET of the node for each volume, a GET
// of each PersistentVolume whose claim is deleted, and the changes themselves.
func TestRequestsForALostNode(t *testing.T) {
	const volumes = 100
	r := lossWorld(t)
	for i := range volumes - 1 {
		v := lossVolume(fmt.Sprintf("v%03d", i), "node-1")
		require.NoError(t, r.client.Tracker().Add(v))
		require.NoError(t, r.client.Tracker().Add(lossClaim(v)))
	}
	require.NoError(t, r.round(0))
	require.NoError(t, r.round(lossGrace))
	count := func() map[string]int {
		out := map[string]int{}
		for _, call := range r.calls {
			out[call]++
		}
		r.calls = nil
		return out
	}
	require.Equal(t, map[string]int{"list nodes": 1, "get nodes": volumes, "get persistentvolumes": volumes, "delete persistentvolumeclaims": volumes, "list pods": 1}, count())
	require.NoError(t, r.round(time.Second))
	require.Equal(t, map[string]int{"list nodes": 1, "get nodes": volumes, "patch persistentvolumes": volumes, "delete persistentvolumes": volumes}, count())
	require.Equal(t, hereIsLeft, r.left())
}

// Of an existing node, one volume is read, however many it carries, because the caches unpack each volume that
// is read.
func TestRoundsLookAtFewVolumes(t *testing.T) {
	const nodes, each = 5, 20
	r := lossWorld(t)
	for i := range nodes * each {
		node := fmt.Sprint("many-", i/each)
		if i%each == 0 {
			require.NoError(t, r.client.Tracker().Add(lossNode(node)))
		}
		require.NoError(t, r.client.Tracker().Add(lossVolume(fmt.Sprintf("%s-%02d", node, i%each), node)))
	}
	require.NoError(t, r.round(0))
	require.Equal(t, nodes+2, r.looked)
}

// A list of the nodes is used for roundTime at most. The rest is left to the next round, which lists them
// again.
func TestNodeLossAsksAnew(t *testing.T) {
	r := lossWorld(t)
	b := lossVolume("b", "node-1")
	require.NoError(t, r.client.Tracker().Add(b))
	require.NoError(t, r.client.Tracker().Add(lossClaim(b)))
	require.NoError(t, r.round(0))
	r.sync()
	r.now = r.now.Add(lossGrace)
	r.fault = func(int) (error, bool) {
		r.now = r.now.Add(roundTime / 2) // the API server is slow
		return nil, false
	}
	more, err := r.loop.round(t.Context())
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, []string{"list nodes", "get nodes", "get persistentvolumes", "delete persistentvolumeclaims", "list pods"}, r.calls)
	r.fault = nil
	require.NoError(t, r.round(0))
	require.Equal(t, "list nodes", r.calls[5])
}

// Volumes that can never be given up, each of which takes up a round, do not keep the others of their nodes.
func TestNodeLossIsNotHeldUpByWhatFails(t *testing.T) {
	r := lossWorld(t, phase("Released"))
	for _, name := range []string{"b", "c", "d"} {
		require.NoError(t, r.client.Tracker().Add(lossVolume(name, "node-1", phase("Released"))))
	}
	r.client.PrependReactor("patch", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.PatchAction).GetName()
		if name == "c" || name == "d" {
			return false, nil, nil
		}
		r.now = r.now.Add(roundTime)
		return true, nil, apierrors.NewForbidden(volumesResource.GroupResource(), name, errors.New("by a policy"))
	})
	require.NoError(t, r.round(0))
	require.ErrorContains(t, r.round(lossGrace), "PersistentVolume a of lost node")
	require.ErrorContains(t, r.round(0), "PersistentVolume b of lost node")
	require.Equal(t, []string{"a Released", "b Released", "c Released", "d Released", "here Bound", "claim-here"}, r.left())

	r.sync()
	more, err := r.loop.round(t.Context())
	require.ErrorContains(t, err, "PersistentVolume a of lost node", "the one that has waited longest")
	require.True(t, more, "something was done, and not all")
	require.Equal(t, []string{"a Released", "b Released", "here Bound", "claim-here"}, r.left())

	r.sync()
	more, err = r.loop.round(t.Context())
	require.ErrorContains(t, err, "PersistentVolume b of lost node")
	require.False(t, more, "nothing was done")
	require.Len(t, r.loop.failed, 2)
}

// If only a hash of the node's name is known, all nodes are listed.
func TestLostNodeWithALongName(t *testing.T) {
	long := strings.Repeat("n", 70)
	r := lossWorld(t, func(v *corev1.PersistentVolume) { v.Labels[pv.LabelNode] = pv.NodeLabelValue(long) })
	require.NoError(t, r.round(0))
	require.NoError(t, r.round(lossGrace))
	require.Equal(t, []string{"list nodes", "list nodes", "get persistentvolumes", "delete persistentvolumeclaims", "list pods"}, r.calls)
}

// claimUsers keeps only the pods that use claims, and of these only the fields that an event refers to.
func TestClaimUsers(t *testing.T) {
	ephemeral := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web-1", Labels: map[string]string{"large": "one"}},
		Spec:       corev1.PodSpec{NodeName: "node-1", Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}},
	}
	twice := usedBy("data")
	twice.Spec.Volumes = append(twice.Spec.Volumes, twice.Spec.Volumes[0])
	r := newRig(t, ephemeral, twice, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "none"}})
	users, err := r.loop.claimUsers(t.Context(), "shop")
	require.NoError(t, err)
	require.Len(t, users, 2)
	require.Len(t, users["shop/data"], 1)
	require.Equal(t, "uses-data", users["shop/data"][0].Name)
	require.Equal(t, []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web-1", ResourceVersion: ephemeral.ResourceVersion}}}, users["shop/web-scratch"])
}
