package provision

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// BenchmarkMemory measures the heap in use per bound volume: its PersistentVolume and its claim in the caches, and
// its charge in the ledger.
func BenchmarkMemory(b *testing.B) {
	const nodes, each = 1000, 20
	for b.Loop() {
		before := heap()
		volumes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, controlplane.NodeIndex())
		claims := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		books := ledger.New(time.Now, func(string) {})
		store := func(in cache.Indexer, object any) {
			packed, err := controlplane.Pack(object)
			if err == nil {
				err = in.Add(packed)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		for i := range nodes * each {
			uid := fmt.Sprintf("7f3c9a52-3b0a-4c58-9f3e-%012d", i)
			object := ledgertest.PersistentVolume(fmt.Sprintf("node-%05d", i/each), ledgertest.Want("pvc-"+uid, volume.GiB))
			object.UID, object.ResourceVersion, object.Status.Phase = types.UID(fmt.Sprintf("b1d0c7e4-92a7-4b52-a9f5-%012d", i)), fmt.Sprint(1000000+i), corev1.VolumeBound
			object.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: fmt.Sprintf("data-database-%d", i), UID: types.UID(uid)}
			books.Written(object)
			store(volumes, object)
			store(claims, &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("data-database-%d", i), UID: types.UID(uid), ResourceVersion: fmt.Sprint(2000000 + i), Annotations: map[string]string{
					pv.AnnotationStorageProvisioner: pv.Provisioner, pv.AnnotationStorageProvisionerBeta: pv.Provisioner,
				}},
				Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-" + uid},
			})
		}
		b.ReportMetric(float64(heap()-before)/(nodes*each), "B/volume")
		runtime.KeepAlive([]any{volumes, claims, books})
	}
}

// Pending claims of other classes take little memory, whatever annotations they have.
func TestForeignPendingClaimsAreSmall(t *testing.T) {
	claims := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	before := heap()
	for i := range 1000 {
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("data-%d", i), Annotations: map[string]string{"much": strings.Repeat("x", 256<<10)}},
			Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: ptrTo("another")},
		}
		packed, err := controlplane.Pack(claim)
		require.NoError(t, err)
		require.NoError(t, claims.Add(packed))
	}
	require.Less(t, heap(), before+16<<20)
	runtime.KeepAlive(claims)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
