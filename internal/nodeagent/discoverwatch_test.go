package nodeagent

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
)

// cleanedAfter returns a PersistentVolume whose disk has to be cleaned.
func cleanedAfter() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "static-a", UID: "pv-1", Annotations: map[string]string{flexlvmv1.AnnotationDisk: "naa.5000"}},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "db", Name: "data", UID: "claim-1"},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/fast/a"}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeReleased},
	}
}

// A cleaning stops immediately when its PersistentVolume is deleted, or changes in a way that matters to the
// cleaning, and for no other change.
func TestCleaningIsStoppedByItsVolume(t *testing.T) {
	now := metav1.Now()
	for name, c := range map[string]struct {
		change func(v *corev1.PersistentVolume)
		stops  bool
	}{
		"Retain": {func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}, true},
		"no claim":          {func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }, true},
		"another claim":     {func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "claim-2" }, true},
		"a phase":           {func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeFailed }, true},
		"being deleted":     {func(v *corev1.PersistentVolume) { v.DeletionTimestamp = &now }, true},
		"made anew":         {func(v *corev1.PersistentVolume) { v.UID = "pv-2" }, true},
		"of no path":        {func(v *corev1.PersistentVolume) { v.Spec.Local = nil }, true},
		"a label":           {func(v *corev1.PersistentVolume) { v.Labels = map[string]string{"a": "b"} }, false},
		"nothing, a resync": {func(*corev1.PersistentVolume) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			stopped := false
			s := &discoverer{departed: map[string][]departure{}, jobs: map[string]*cleaning{"naa.5000": {volume: "pv-1", stop: func(error) { stopped = true }}}}
			after := cleanedAfter()
			c.change(after)
			s.volumeChanged(cleanedAfter(), after)
			require.Equal(t, c.stops, stopped)
		})
	}
	for name, gone := range map[string]any{"gone": cleanedAfter(), "gone while nobody watched": cache.DeletedFinalStateUnknown{Key: "static-a", Obj: cleanedAfter()}} {
		stopped := false
		s := &discoverer{departed: map[string][]departure{}, jobs: map[string]*cleaning{"naa.5000": {volume: "pv-1", stop: func(error) { stopped = true }}}}
		other := cleanedAfter()
		other.UID = "pv-2"
		s.volumeGone(other)
		require.False(t, stopped, "another is gone")
		s.volumeGone(gone)
		require.True(t, stopped, name)
	}
}

// A PersistentVolume that no scan has seen has used its disk nevertheless, which is recorded. The deletion of one
// whose disk was cleaned changes nothing.
func TestVolumesThatCameAndWentAreRecorded(t *testing.T) {
	offered := discovery.Entry{Offer: 3, Offered: true, Volume: "pv-0", Cleaned: []string{"pv-0"}}
	cleaned := discovery.Entry{Offer: 3, Volume: "pv-1", Claim: "claim-1", Cleaned: []string{"pv-1"}}
	for name, c := range map[string]struct {
		entry  discovery.Entry
		busy   bool
		there  bool
		change func(v *corev1.PersistentVolume)
		want   discovery.Entry
		kept   bool
	}{
		"unseen":               {entry: offered, want: discovery.Entry{Offer: 3, Volume: "pv-1", Cleaned: []string{"pv-0"}}},
		"seen":                 {entry: discovery.Entry{Volume: "pv-1", Claim: "claim-1", Offset: 7}, want: discovery.Entry{Volume: "pv-1", Claim: "claim-1", Offset: 7}},
		"cleaned":              {entry: cleaned, want: cleaned},
		"cleaned, never bound": {entry: cleaned, change: func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }, want: cleaned},
		"cleaned, bound since": {entry: cleaned, change: func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "claim-2" }, want: discovery.Entry{Offer: 3, Volume: "pv-1", Claim: "claim-1", Cleaned: []string{}}},
		"cleaned long ago":     {entry: discovery.Entry{Volume: "pv-2", Claim: "claim-2", Cleaned: []string{"pv-1"}}, want: discovery.Entry{Volume: "pv-2", Claim: "claim-2", Cleaned: []string{"pv-1"}}},
		"another is there":     {entry: offered, there: true, want: offered},
		"being cleaned":        {entry: offered, busy: true, want: offered, kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &discoverer{
				departed: map[string][]departure{}, busy: map[string]bool{"naa.5000": c.busy},
				volumes: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.PersistentVolume{}, 0, cache.Indexers{}),
			}
			if c.there {
				require.NoError(t, s.volumes.GetStore().Add(cleanedAfter()))
			}
			v := cleanedAfter()
			if c.change != nil {
				c.change(v)
			}
			s.volumeGone(v)
			ledger := discovery.Ledger{"naa.5000": c.entry}
			done := s.recordDepartures(ledger)
			require.Equal(t, discovery.Ledger{"naa.5000": c.want}, ledger)
			s.volumeGone(v) // during the save
			s.dropRecorded(done)
			if c.kept {
				require.Len(t, s.departed["naa.5000"], 2)
			} else {
				require.Len(t, s.departed["naa.5000"], 1)
			}
			nobody := discovery.Ledger{}
			s.busy = nil
			s.dropRecorded(s.recordDepartures(nobody))
			require.Empty(t, nobody, "of what is not known nothing is noted")
			require.Empty(t, s.departed)
		})
	}
}
