package nodeagent

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// apiWithOne returns a client of an API server that returns *now under any name, or 404 while that is nil.
func apiWithOne(t *testing.T, now **corev1.PersistentVolume) (api *kube.Client, leave func()) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if *now != nil {
			_ = json.NewEncoder(w).Encode(*now)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound})
	}))
	t.Cleanup(server.Close)
	api, err := kube.NewClient(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	return api, server.Close
}

// A PersistentVolume of this node that has been created or changed since a removal was decided stops the removal,
// because no round has judged it yet.
func TestPersistentVolumeThatChangesBeforeTheRemoval(t *testing.T) {
	var now *corev1.PersistentVolume
	api, leave := apiWithOne(t, &now)
	d := &Daemon{cfg: Config{Node: "node-1"}, api: api}
	ask := func(judged *corev1.PersistentVolume) error {
		return d.checkNotKept(t.Context(), inventory.Volume{Name: "old"}, judged)
	}
	of := func(node, version string) *corev1.PersistentVolume {
		o := namedOld(node)
		o.ResourceVersion = version
		return o
	}
	require.NoError(t, ask(nil), "none is there")
	now = of("node-1", "7")
	require.NoError(t, ask(of("node-1", "7")))
	require.True(t, refused(ask(nil), refusedChanged))
	require.True(t, refused(ask(of("node-1", "6")), refusedChanged))
	now = of("node-2", "7")
	require.True(t, refused(ask(nil), refusedKept))
	leave()
	require.True(t, refused(ask(nil), refusedUnanswered))
}

// namedOld returns a bound PersistentVolume "old" that is labelled for a node.
func namedOld(node string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{Kind: "PersistentVolume", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "old", UID: "uid", ResourceVersion: "7", Labels: map[string]string{pv.LabelNode: node}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{
				Driver: pv.Driver, Options: map[string]string{volume.OptionGroup: "flexlvm", volume.OptionSize: "1073741824"},
			}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
}

// A PersistentVolume of another node with the name of a volume keeps the volume, unless it certainly refers to
// something else.
func TestPersistentVolumeOfAnotherNodeThatMeansAnother(t *testing.T) {
	const mine, other = "0b0c4a0e-6d55-4b8e-8a0c-6e1f2a3b4c5d", "7f3d2c1b-0a99-4e21-b1f4-93c2d5a6e7f8"
	option := func(key, value string) func(*corev1.PersistentVolume) {
		return func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[key] = value }
	}
	source := func(s corev1.PersistentVolumeSource) func(*corev1.PersistentVolume) {
		return func(o *corev1.PersistentVolume) { o.Spec.PersistentVolumeSource = s }
	}
	otherNode := func(o *corev1.PersistentVolume) { o.Labels[pv.LabelNode] = "node-2" }
	for name, tt := range map[string]struct {
		fs     string // of the volume
		change []func(*corev1.PersistentVolume)
		kept   bool
	}{
		"its file system":                    {mine, []func(*corev1.PersistentVolume){otherNode, option(volume.OptionFS, mine)}, true},
		"any file system":                    {mine, []func(*corev1.PersistentVolume){otherNode}, true},
		"another file system":                {mine, []func(*corev1.PersistentVolume){otherNode, option(volume.OptionFS, other)}, false},
		"another, of no node":                {mine, []func(*corev1.PersistentVolume){option(volume.OptionFS, other)}, false},
		"another, and the volume's unknown":  {"", []func(*corev1.PersistentVolume){otherNode, option(volume.OptionFS, other)}, true},
		"another, and cannot be read":        {mine, []func(*corev1.PersistentVolume){otherNode, option(volume.OptionFS, other), option("colour", "red")}, true},
		"another, and labelled for the node": {mine, []func(*corev1.PersistentVolume){func(o *corev1.PersistentVolume) { o.Labels[pv.LabelNode] = "node-1" }, option(volume.OptionFS, other)}, true},
		"another CSI driver": {mine, []func(*corev1.PersistentVolume){source(corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: "other.io", VolumeHandle: "flexlvm/old"},
		})}, false},
		"another FlexVolume driver": {mine, []func(*corev1.PersistentVolume){source(corev1.PersistentVolumeSource{
			FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: "example.com/other"},
		})}, false},
		"NFS": {mine, []func(*corev1.PersistentVolume){source(corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nas", Path: "/old"}})}, false},
		"a path on a node": {mine, []func(*corev1.PersistentVolume){source(corev1.PersistentVolumeSource{
			Local: &corev1.LocalVolumeSource{Path: "/dev/flexlvm/old"},
		})}, true},
		"a path on the host": {mine, []func(*corev1.PersistentVolume){source(corev1.PersistentVolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/dev/flexlvm/old"},
		})}, true},
	} {
		t.Run(name, func(t *testing.T) {
			now := namedOld("")
			for _, change := range tt.change {
				change(now)
			}
			api, _ := apiWithOne(t, &now)
			d := &Daemon{cfg: Config{Node: "node-1"}, api: api}
			err := d.checkNotKept(t.Context(), inventory.Volume{Name: "old", FS: tt.fs}, nil)
			require.Equal(t, tt.kept, err != nil, "%v", err)
		})
	}
}

// An answer of the API server ends the backoff of an unanswered request.
func TestUnansweredEndsWithAnAnswer(t *testing.T) {
	d := &Daemon{unanswered: newBackoff(time.Second, time.Minute)}
	d.unanswered.add("uuid", time.Now(), "no answer")
	d.clearUnanswered("uuid", &refusal{errors.New("words"), refusedUnanswered})
	require.Equal(t, 1, d.unanswered.times("uuid"))
	d.clearUnanswered("uuid", &refusal{errors.New("words"), refusedKept})
	require.Zero(t, d.unanswered.times("uuid"))
}
