package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// serveReports returns a client of an API server with these NodeStorages, which never change.
func serveReports(t *testing.T, reports ...flexlvmv1.NodeStorage) *kube.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("sendInitialEvents") != "" { // as a server without support for it
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil).Status())
			return
		}
		if r.URL.Query().Get("watch") != "" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		if strings.HasSuffix(r.URL.Path, "/localvolumes") {
			_ = json.NewEncoder(w).Encode(flexlvmv1.LocalVolumeList{
				TypeMeta: metav1.TypeMeta{APIVersion: "flexlvm.io/v1", Kind: "LocalVolumeList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"},
			})
			return
		}
		_ = json.NewEncoder(w).Encode(flexlvmv1.NodeStorageList{
			TypeMeta: metav1.TypeMeta{APIVersion: "flexlvm.io/v1", Kind: "NodeStorageList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: reports,
		})
	}))
	t.Cleanup(server.Close)
	client, err := kube.NewClient(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	return client
}

// A new leader's watches may show an older state than the last leader has written. What the last leader has promised
// is not promised again.
func TestWorkCountsWhatItsWatchesDoNotShow(t *testing.T) {
	spec := volume.Spec{Group: "flexlvm", Name: "pvc-1", Size: volume.GiB, Layout: volume.Linear, Kind: volume.Claim, Cluster: "cluster"}
	written := persistentvolume.New(pv.Description{
		Name: "pvc-1", Node: "node-1", Hostname: "host-1", Spec: spec, Charged: spec.Charge(),
		Disposal: volume.Disposal{Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone}, OnNodeLoss: volume.OnNodeLossKeep,
	}, nil, corev1.PersistentVolumeReclaimDelete)
	client := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelHostname: "host-1"}}},
		storageClass("fast", "flexlvm"), written,
	)
	client.PrependReactor("list", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		// Only caches ask for resourceVersion "0", which may return an older state.
		stale := action.(clienttesting.ListActionImpl).ListOptions.ResourceVersion != ""
		return stale, &corev1.PersistentVolumeList{}, nil
	})
	client.PrependWatchReactor("persistentvolumes", func(clienttesting.Action) (bool, watch.Interface, error) { return true, watch.NewFake(), nil })
	published := make(chan *storagev1.CSIStorageCapacity, 1)
	client.PrependReactor("create", "csistoragecapacities", func(action clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case published <- action.(clienttesting.CreateAction).GetObject().(*storagev1.CSIStorageCapacity):
		default:
		}
		return false, nil, nil
	})
	const room = 10 * volume.GiB
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Work(ctx, Config{
			Client: client, Capacities: client, Loss: client, Storage: serveReports(t, *storageOf("node-1", room)), Cluster: "cluster", Namespace: "flexlvm-system",
			Metrics: NewMetrics(), Workers: 1, NodeLossGrace: time.Hour,
		})
	}()
	select {
	case capacity := <-published:
		require.Equal(t, int64(within(room-spec.Charge())), capacity.MaximumVolumeSize.Value(), "what the last leader has promised")
	case err := <-ended:
		require.FailNow(t, "it has ended", "%v", err)
	case <-time.After(time.Minute):
		require.FailNow(t, "nothing was published")
	}
	stop()
	require.NoError(t, <-ended)
}

// The ledger records a PersistentVolume that was created for a claim even if the watch never shows it: a reservation
// would expire while the PersistentVolume exists.
func TestWorkChargesWhatItHasCreated(t *testing.T) {
	client := fake.NewClientset(append(scheduledClaim("team-a", "data", "7f3c9a52-3b0a-4c58-9f3e-000000000001"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelHostname: "host-1"}}},
		storageClass("fast", "flexlvm"),
	)...)
	client.PrependWatchReactor("persistentvolumes", func(clienttesting.Action) (bool, watch.Interface, error) { return true, watch.NewFake(), nil })
	ledgers := make(chan *ledger.Ledger, 1)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Work(ctx, Config{
			Client: client, Capacities: client, Loss: client, Storage: serveReports(t, *storageOf("node-1", 10*volume.GiB)), Cluster: "cluster", Namespace: "flexlvm-system",
			Metrics: NewMetrics(), Workers: 1, NodeLossGrace: time.Hour,
			Snapshots: func(ctx context.Context, _ Listers, books *ledger.Ledger) error {
				ledgers <- books
				<-ctx.Done()
				return nil
			},
		})
	}()
	books := <-ledgers
	// Only a PersistentVolume that exists needs no room.
	want := ledger.Want{PV: "pvc-7f3c9a52-3b0a-4c58-9f3e-000000000001", Spec: volume.Spec{Group: "flexlvm", Size: volume.TiB, Layout: volume.Linear, Kind: volume.Claim}}
	require.Eventually(t, func() bool { return books.Fits("node-1", want) == nil }, time.Minute, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}

// scheduledClaim returns a claim of 1 GiB that the scheduler has sent to node-1, and its pod.
func scheduledClaim(namespace, name, uid string) []runtime.Object {
	return []runtime.Object{
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid), Annotations: map[string]string{
				pv.AnnotationStorageProvisioner: pv.Provisioner, pv.AnnotationSelectedNode: "node-1",
			}},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: ptrTo("fast"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
		},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			}}}},
		},
	}
}

// A policy may forbid the PersistentVolumes of one namespace. The claims of others do not wait while theirs are
// retried, and the room of all stays reserved.
func TestRefusedPersistentVolumesDelayNoOthers(t *testing.T) {
	objects := []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelHostname: "host-1"}}},
		storageClass("fast", "flexlvm"),
	}
	namespaces := []string{"forbidden", "forbidden", "forbidden", "team-a"}
	for i, namespace := range namespaces {
		objects = append(objects, scheduledClaim(namespace, fmt.Sprint("data-", i), fmt.Sprintf("7f3c9a52-3b0a-4c58-9f3e-%012d", i))...)
	}
	client := fake.NewClientset(objects...)
	tried := make(chan string, 1000)
	client.PrependReactor("create", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		object := action.(clienttesting.CreateAction).GetObject().(*corev1.PersistentVolume)
		tried <- object.Name
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumes"}, object.Name, errors.New("by a policy"))
		return object.Spec.ClaimRef.Namespace == "forbidden", nil, forbidden
	})
	const room = 10 * volume.GiB
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Work(ctx, Config{
			Client: client, Capacities: client, Loss: client, Storage: serveReports(t, *storageOf("node-1", room)), Cluster: "cluster", Namespace: "flexlvm-system",
			Metrics: NewMetrics(), Workers: 1, NodeLossGrace: time.Hour,
		})
	}()
	var names []string
	for range namespaces {
		select {
		case name := <-tried:
			require.NotContains(t, names, name, "it is retried once the others had their turn")
			names = append(names, name)
		case <-time.After(time.Minute):
			require.FailNow(t, "a claim waits", "tried: %v", names)
		}
	}
	spec := volume.Spec{Group: "flexlvm", Size: volume.GiB, Layout: volume.Linear, Kind: volume.Claim}
	left := int64(within(room - volume.Bytes(len(namespaces))*spec.Charge()))
	require.Eventually(t, func() bool {
		published, err := client.StorageV1().CSIStorageCapacities("flexlvm-system").List(ctx, metav1.ListOptions{})
		return err == nil && len(published.Items) == 1 && published.Items[0].MaximumVolumeSize.Value() == left
	}, time.Minute, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}
