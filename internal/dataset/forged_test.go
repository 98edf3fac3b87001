package dataset

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// Users may create any number of claims that are labelled as those of former volumes of a VolumeManager: these
// must not cost one list of nodes each.
func TestForgedVolumes(t *testing.T) {
	r := newRig(t)
	vm := r.manager(1)
	r.runs()
	const forged = 50
	for i := range forged {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("forged-%d", i), Finalizers: []string{"example.org/stay"},
			Labels: map[string]string{replica.LabelOwner: string(vm.UID)}, Annotations: map[string]string{replica.AnnotationVolumeID: fmt.Sprintf("f%d", i)},
		}}
		if i == 0 {
			claim.Annotations[replica.AnnotationVolumeID] = strings.Repeat("f", 200)
		}
		require.NoError(t, r.client.Create(t.Context(), claim))
		require.NoError(t, r.client.Delete(t.Context(), claim)) // its finalizer keeps it, and no further action is due
	}
	lists := 0
	r.live = interceptor.NewClient(r.client, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
		if _, nodes := list.(*metav1.PartialObjectMetadataList); nodes {
			lists++
		}
		return c.List(ctx, list, o...)
	}})
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "v"}})
	require.NoError(t, err)
	require.Positive(t, lists)
	require.Less(t, lists, 10)
	s, err := r.list(t.Context(), r.get())
	require.NoError(t, err)
	require.Len(t, formerIDs(vm, s), forged-1, "no volume has an id as long as that of one of them")
}

// labelledOnce returns for each of several volumes the nodes that labelled returns for it.
func TestLabelledOnce(t *testing.T) {
	r := newRig(t)
	label := func(i int) string { return (&Observed{Owner: managerOf(i)}).label() }
	for i := range 8 {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("bearer-%d", i), Labels: map[string]string{label(i): "true", label(i / 2): "true", "theirs": "true"}}}
		require.NoError(t, r.client.Create(t.Context(), node))
	}
	s := &cacheView{}
	for i := range 8 {
		observed := &Observed{Owner: managerOf(i)}
		alone, err := r.labelled(t.Context(), observed)
		require.NoError(t, err)
		require.NotEmpty(t, alone)
		together, err := r.labelledOnce(t.Context(), observed, s)
		require.NoError(t, err)
		require.Equal(t, alone, together)
	}
	require.NotNil(t, s.labelled)
	require.NotContains(t, s.labelled, "theirs")
}

// However many loaders do not answer, asking them ends after 4*askTimeout, so that other VolumeManagers do not
// wait for minutes.
func TestLoadersThatDoNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var asked atomic.Int32
		r.Progress = func(ctx context.Context, _, _ string) *protocol.Status {
			asked.Add(1)
			<-ctx.Done()
			return nil
		}
		observed := &Observed{Owner: managerOf(1), Replicas: map[int]*Replica{}}
		for i := range 10 * asksAtOnce {
			pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"}}
			observed.Replicas[i] = &Replica{Claim: &corev1.PersistentVolumeClaim{}, Pod: pod}
		}
		begun := time.Now()
		r.askLoaders(t.Context(), observed, &cacheView{})
		require.Equal(t, 4*askTimeout, time.Since(begun))
		require.EqualValues(t, 10*asksAtOnce, asked.Load())
	})
}

// In a pass, all loaders of a VolumeManager are asked for askAllTimeout at most. If those of some volumes do not answer,
// those of the other volumes are still asked.
func TestLoadersOfManyVolumesThatDoNotAnswer(t *testing.T) {
	const volumes = 32
	r := runningLoaders(t, volumes)
	requireShares(t, r, volumes)

	// Volumes whose loaders are not asked take no share.
	vm := r.get()
	for i := range volumes / 2 {
		vm.Spec.Volumes[i].SourceType = "Unknown"
	}
	require.NoError(t, r.client.Update(t.Context(), vm))
	requireShares(t, r, volumes/2)
}

// runningLoaders returns a rig with a VolumeManager whose volumes each have a running loader.
func runningLoaders(t *testing.T, volumes int) *rig {
	t.Helper()
	r := newRig(t)
	vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v"}}
	for i := range volumes {
		v := volumeOf(flexlvmv1.SourceS3, 1, s3Options(options{"resync": "true"}))
		v.ID = fmt.Sprintf("a%02d", i)
		vm.Spec.Volumes = append(vm.Spec.Volumes, v)
	}
	require.NoError(t, r.client.Create(t.Context(), vm))
	jobs, pods := &batchv1.JobList{}, &corev1.PodList{}
	for tries := 0; len(jobs.Items) < volumes; tries++ {
		require.Less(t, tries, 6)
		require.NoError(t, r.look())
		require.NoError(t, r.client.List(t.Context(), jobs))
	}
	for i := range jobs.Items {
		r.endedPod(&jobs.Items[i])
	}
	require.NoError(t, r.client.List(t.Context(), pods))
	require.Len(t, pods.Items, volumes)
	for i := range pods.Items {
		pods.Items[i].Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: pods.Items[i].Annotations[replica.AnnotationVolumeID]}
		require.NoError(t, r.client.Status().Update(t.Context(), &pods.Items[i]))
	}
	return r
}

// requireShares checks that in one pass, the loaders of so many volumes are asked, for equal shares of askAllTimeout.
func requireShares(t *testing.T, r *rig, volumes int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		waited := map[string]time.Duration{}
		r.Progress = func(ctx context.Context, podIP, _ string) *protocol.Status {
			begun := time.Now()
			<-ctx.Done()
			waited[podIP] = time.Since(begun)
			return nil
		}
		begun := time.Now()
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "v"}})
		require.NoError(t, err)
		require.Equal(t, askAllTimeout, time.Since(begun).Round(time.Microsecond))
		require.Len(t, waited, volumes)
		for _, each := range waited {
			require.Equal(t, askAllTimeout/time.Duration(volumes), each.Round(time.Microsecond))
		}
	})
}

func managerOf(i int) *flexlvmv1.VolumeManager {
	return &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v", UID: types.UID(fmt.Sprintf("uid-%d", i))}}
}

// A user's program may answer at the address of a loader, so the length of a report is bounded.
func TestReportIsBounded(t *testing.T) {
	long := strings.Repeat("ü", 30<<10)
	report := &protocol.Status{Message: long, Contents: long, Revision: long, Checks: long, Index: long, ID: long, Run: long, Final: long, State: long}
	for range 20_000 {
		report.Notes = append(report.Notes, long)
	}
	truncateReport(report)
	require.Len(t, report.Notes, 16)
	require.Equal(t, 16, cap(report.Notes), "nothing more stays in memory")
	for _, text := range append(report.Notes, report.Message, report.Contents, report.Revision, report.Checks, report.Index, report.ID, report.Run, report.Final, report.State) {
		require.LessOrEqual(t, len(text), 1100)
		require.True(t, strings.HasSuffix(text, "ü …"), "%q", text)
	}

	small := &protocol.Status{Message: "m", Contents: "sha256:1", Notes: []string{"n"}, FilesDone: 3}
	truncateReport(small)
	require.Equal(t, &protocol.Status{Message: "m", Contents: "sha256:1", Notes: []string{"n"}, FilesDone: 3}, small)
}
