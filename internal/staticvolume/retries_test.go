package staticvolume

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgotesting "k8s.io/client-go/testing"
)

// A path whose PersistentVolume cannot be created costs few requests, however often rounds run, and
// gets one within minutes after a person has fixed the cause.
func TestWhatCannotBeMadeBacksOff(t *testing.T) {
	w := newWorld(t)
	now, denied := time.Now(), true
	w.c.Now = func() time.Time { return now }
	taken := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/fast/a"}},
	}}
	require.NoError(t, w.client.Tracker().Add(taken))
	w.client.PrependReactor("create", "persistentvolumes", func(clientgotesting.Action) (bool, runtime.Object, error) {
		return denied, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumes"}, "static", errors.New("a policy"))
	})
	second := *w.found()
	second.Path, second.Disk = "/mnt/fast/b", "fs-2"
	w.report.Status.Discovered = append(w.report.Status.Discovered, second)
	requests := func() map[string]int {
		out := map[string]int{}
		for _, a := range w.client.Actions() {
			out[a.GetVerb()]++
		}
		w.client.ClearActions()
		return out
	}
	// until runs rounds until a path has its PersistentVolume.
	until := func(path string, every time.Duration) (took time.Duration) {
		for began := now; ; now = now.Add(every) {
			w.report.Status.ObservedTime = metav1.NewTime(now)
			_ = w.c.reconcile(t.Context())
			if _, err := w.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", Name("n1", path)); err == nil {
				return now.Sub(began)
			}
			require.Less(t, now.Sub(began), time.Hour)
		}
	}

	for range 100 { // rounds in 20 s
		w.report.Status.ObservedTime = metav1.NewTime(now)
		_ = w.c.reconcile(t.Context())
		now = now.Add(200 * time.Millisecond)
	}
	require.Equal(t, map[string]int{"list": 2, "get": 2, "create": 2}, requests())

	for range 60 { // rounds in an hour
		now = now.Add(reconcileEvery)
		w.report.Status.ObservedTime = metav1.NewTime(now)
		_ = w.c.reconcile(t.Context())
	}
	require.Less(t, requests()["list"], 20)
	denied = false
	require.LessOrEqual(t, until("/mnt/fast/b", reconcileEvery), 5*time.Minute)

	require.NoError(t, w.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", "other"))
	w.found().Offer++
	require.Zero(t, until("/mnt/fast/a", time.Second), "its node reports something else")
}

// Only changes of what a node has discovered wake the controller; most changes of its report do not.
func TestOnlyWhatIsDiscoveredKicks(t *testing.T) {
	w := newWorld(t)
	kicked := func() bool {
		select {
		case <-w.c.wake:
			return true
		default:
			return false
		}
	}
	handler := w.c.wakeOn(discoveredChanged)
	handler.OnAdd(w.report, false)
	require.True(t, kicked())
	for range 100 {
		was := w.report.DeepCopy()
		w.report.Status.ObservedTime = metav1.NewTime(w.report.Status.ObservedTime.Add(200 * time.Millisecond))
		handler.OnUpdate(was, w.report)
	}
	require.False(t, kicked())
	was := w.report.DeepCopy()
	w.found().Offer++
	handler.OnUpdate(was, w.report)
	require.True(t, kicked())
	was = w.report.DeepCopy()
	w.report.Status.DiscoveredFrom = "d-1/4"
	handler.OnUpdate(was, w.report)
	require.True(t, kicked())
}
