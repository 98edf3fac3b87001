package staticvolume

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// slowList is a client of an API server that takes a while for each page of PersistentVolumes.
type slowList struct {
	kubernetes.Interface
	pages int           // none of which has a PersistentVolume
	takes time.Duration // per page
	lists *int          // how many were begun
}

func (s slowList) CoreV1() typedcorev1.CoreV1Interface { return slowCore{s.Interface.CoreV1(), s} }

type slowCore struct {
	typedcorev1.CoreV1Interface
	of slowList
}

func (s slowCore) PersistentVolumes() typedcorev1.PersistentVolumeInterface {
	return slowVolumes{s.CoreV1Interface.PersistentVolumes(), s.of}
}

type slowVolumes struct {
	typedcorev1.PersistentVolumeInterface
	of slowList
}

func (s slowVolumes) List(ctx context.Context, options metav1.ListOptions) (*corev1.PersistentVolumeList, error) {
	n, _ := strconv.Atoi(options.Continue)
	if n == 0 {
		*s.of.lists++
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(s.of.takes):
	}
	out := &corev1.PersistentVolumeList{}
	if n++; n < s.of.pages {
		out.Continue = strconv.Itoa(n)
	}
	return out, nil
}

func (s slowVolumes) Create(ctx context.Context, object *corev1.PersistentVolume, options metav1.CreateOptions) (*corev1.PersistentVolume, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return s.PersistentVolumeInterface.Create(ctx, object, options)
}

// A list of many pages takes longer than any single request may.
func TestAListOfManyPagesHasTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, lists := newWorld(t), 0
		w.c.Client = slowList{w.client, 20, callTimeout / 2, &lists}
		require.Len(t, w.round(), 1)
		require.Equal(t, 1, lists)
	})
}

// If the API server does not answer, a round waits for one page only, whatever number of disks it is about.
func TestAFailedListIsNotRepeatedForEachDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, lists := newWorld(t), 0
		for i := range 50 {
			more := *w.found()
			more.Path, more.Disk = fmt.Sprintf("/mnt/fast/more-%d", i), fmt.Sprintf("fs-more-%d", i)
			w.report.Status.Discovered = append(w.report.Status.Discovered, more)
		}
		w.c.Client = slowList{w.client, 1, 2 * callTimeout, &lists}
		began := time.Now()
		require.EqualError(t, w.c.reconcile(t.Context()), "list PersistentVolumes: context deadline exceeded")
		require.Equal(t, callTimeout, time.Since(began))
		require.Equal(t, 1, lists)

		w.c.Client = slowList{w.client, 1, 0, &lists}
		time.Sleep(minRetry)
		require.Len(t, w.round(), 51, "the next round lists again")
	})
}
