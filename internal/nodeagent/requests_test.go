package nodeagent_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ask adds requests to the NodeStorage, as a person does.
func (r *rig) ask(requests ...flexlvmv1.VolumeRequest) {
	r.t.Helper()
	r.eventually(func() bool { return r.api.report() != nil }, "no report")
	r.api.with(func() {
		r.api.storage.Spec.Requests = requests
		r.api.changed("MODIFIED", r.api.storage)
	})
}

func (r *rig) request(id, name string, to volume.State) flexlvmv1.VolumeRequest {
	return flexlvmv1.VolumeRequest{ID: id, Time: metav1.NewTime(r.clock.now()), Group: "flexlvm", Name: name, FilesystemUUID: fsUUID, State: string(to)}
}

func (r *rig) answer(id string) (answer flexlvmv1.VolumeAnswer) {
	r.t.Helper()
	r.eventually(func() bool {
		for _, a := range r.status().Answers {
			if a.ID == id {
				answer = a
			}
		}
		return answer.ID != ""
	}, "no answer to %s", id)
	return answer
}

func TestRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("data", volume.Unreferenced, 10, withFS)
	stop := r.start()
	r.ask(r.request("1", "data", volume.Retained))
	require.Equal(t, flexlvmv1.VolumeAnswer{ID: "1", Done: true, Message: "flexlvm/data is retained now (it was unreferenced): it stays until somebody undeletes or forgets it"}, r.answer("1"))
	require.Contains(t, r.engine.names(), "data retained")
	r.eventually(func() bool { return len(r.api.told("VolumeRetained")) == 1 }, "no event")

	// Each request is carried out once, even across restarts, whatever happens to the volume.
	r.engine.with(func() { r.engine.volumes[1].State = volume.Unreferenced })
	r.rounds(3)
	stop()
	r.start()
	r.rounds(3)
	require.Contains(t, r.engine.names(), "data unreferenced")
	require.Len(t, r.engine.called("set "), 1)

	r.ask(r.request("1", "data", volume.Retained), r.request("2", "data", volume.Retained), r.request("3", "data", volume.Retained))
	require.Equal(t, "flexlvm/data is retained already", r.answer("3").Message)
	r.ask(r.request("4", "data", volume.Unreferenced))
	require.Contains(t, r.answer("4").Message, "is unreferenced now (it was retained): it is evicted when its room is needed; until then `flexlvm volumes undelete data` restores it")
	r.eventually(func() bool { return len(r.api.told("VolumeForgotten")) == 1 }, "no event")
	require.Len(t, r.status().Answers, 1, "those to requests that are gone are dropped")
	r.ask()
	r.eventually(func() bool { return len(r.status().Answers) == 0 }, "the last answer stays")
}

// If a call holds the volume's lock, the answer asks the person to try again.
func TestRequestAboutWhatIsBusy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("data", volume.Unreferenced, 10, withFS)
	r.engine.with(func() {
		r.engine.fault = failing("set flexlvm/data", fmt.Errorf("lock volume: %w", node.ErrBusy))
	})
	r.start()
	r.ask(r.request("1", "data", volume.Retained))
	require.Equal(t, flexlvmv1.VolumeAnswer{ID: "1", Message: "lock volume: another call holds the lock; ask again when that call has ended"}, r.answer("1"))
}

func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("data", volume.Retained, 10, withFS)
	r.volume("wanted", volume.Ready, 10, withFS)
	r.api.put(object("wanted", 10))
	r.volume("strayed", volume.Ready, 10, withFS)
	r.api.put(object("strayed", 10, func(o *corev1.PersistentVolume) { delete(o.Labels, pv.LabelNode) }))
	r.volume("of-another-name", volume.Ready, 10, withFS)
	r.api.put(object("by-hand", 10, func(o *corev1.PersistentVolume) {
		delete(o.Labels, pv.LabelNode)
		o.Spec.FlexVolume.Options[volume.OptionVolume] = "of-another-name"
	}))
	r.volume("busy", volume.Ready, 10, withFS, func(v *inventory.Volume) { v.Open = true })
	r.volume("locked", volume.Retained, 10, withFS)
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			if strings.HasPrefix(call, "set flexlvm/locked") {
				return errors.New("LVM is locked")
			}
			return nil
		}
	})
	r.start()
	forget := func(name string, change func(*flexlvmv1.VolumeRequest)) flexlvmv1.VolumeRequest {
		out := r.request("", name, volume.Unreferenced)
		if change != nil {
			change(&out)
		}
		return out
	}
	var all []flexlvmv1.VolumeRequest
	says := []string{}
	add := func(request flexlvmv1.VolumeRequest, answer string) {
		request.ID = fmt.Sprint(len(all))
		all, says = append(all, request), append(says, answer)
	}
	add(forget("wanted", nil), "PersistentVolume wanted names volume flexlvm/wanted, so it has an owner")
	add(forget("strayed", nil), `PersistentVolume strayed names volume strayed, and its label flexlvm.io/node is "" and not "node-1"`)
	add(forget("of-another-name", nil), "PersistentVolume by-hand names volume of-another-name")
	add(forget("gone", nil), "volume flexlvm/gone is gone: it was evicted")
	add(forget("busy", nil), "is in use on the node")
	add(forget("locked", nil), "LVM is locked")
	add(forget("data", func(q *flexlvmv1.VolumeRequest) { q.FilesystemUUID = "1f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11" }), "but the request names 1f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11")
	add(forget("data", func(q *flexlvmv1.VolumeRequest) { q.State = "doomed" }), "doomed is not a state that can be requested")
	add(forget("data", func(q *flexlvmv1.VolumeRequest) { q.Time = metav1.NewTime(r.clock.now().Add(-2 * soon * 1000)) }), "ask again")
	r.ask(all...)
	for i, text := range says {
		answer := r.answer(fmt.Sprint(i))
		require.False(t, answer.Done)
		require.Contains(t, answer.Message, text)
	}
	require.Subset(t, r.engine.names(), []string{"data retained", "wanted ready", "strayed ready", "of-another-name ready", "busy ready", "locked retained"})
}

// No volume is given up while the PersistentVolumes without a node cannot be listed: one may refer to it.
func TestForgetWithoutAllPersistentVolumes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("data", volume.Ready, 10, withFS)
	r.api.fail(http.StatusServiceUnavailable, "list unlabelled persistentvolumes")
	r.start()
	r.ask(r.request("1", "data", volume.Unreferenced))
	require.Contains(t, r.answer("1").Message, "list the PersistentVolumes of no node")
	require.Contains(t, r.engine.names(), "data ready")
}

// A request that was withdrawn while the watch hung is not carried out, nor is one that another process has answered.
func TestRequestsThatAreOver(t *testing.T) {
	for name, since := range map[string]func(*flexlvmv1.NodeStorage){
		"withdrawn": func(*flexlvmv1.NodeStorage) {},
		"another": func(is *flexlvmv1.NodeStorage) {
			is.Spec.Requests = []flexlvmv1.VolumeRequest{{ID: "1", Group: "flexlvm", Name: "data", FilesystemUUID: fsUUID, State: "retained"}}
		},
		"answered": func(is *flexlvmv1.NodeStorage) {
			is.Status.Answers = []flexlvmv1.VolumeAnswer{{ID: "1", Done: true}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.volume("data", volume.Retained, 10, withFS)
			r.start()
			r.eventually(func() bool { return r.api.report() != nil }, "no report")
			r.rounds(2)
			r.api.with(func() {
				late := r.api.storage.DeepCopy()
				late.Spec.Requests = []flexlvmv1.VolumeRequest{r.request("1", "data", volume.Unreferenced)}
				r.api.changed("MODIFIED", late)
				since(r.api.storage)
			})
			r.rounds(3)
			require.Contains(t, r.engine.names(), "data retained")
			require.Empty(t, r.engine.called("set "))
		})
	}
}

// A request is not carried out before the API server confirms it, and never by a dry run.
func TestRequestsWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("orphan", volume.Ready, 10, withFS)
	r.start()
	r.rounds(2)
	r.api.fail(503, "get namespaces", "list persistentvolumes", "get persistentvolumes")
	r.ask(r.request("1", "orphan", volume.Unreferenced))
	r.rounds(3)
	require.Contains(t, r.engine.names(), "orphan ready")
	require.Empty(t, r.status().Answers)
	r.api.mend()
	require.Contains(t, r.answer("1").Message, "is unreferenced now (it was ready)")

	dry := newRig(t)
	dry.config.DryRun = true
	dry.volume("data", volume.Unreferenced, 10, withFS)
	dry.start()
	dry.ask(dry.request("1", "data", volume.Retained))
	dry.rounds(3)
	require.Contains(t, dry.engine.names(), "data unreferenced")
}
