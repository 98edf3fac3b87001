package controlplane

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// client-go would repeat the request ten times, with the pauses that the overloaded API server asks for.
func TestCreationsOfPersistentVolumesEnd(t *testing.T) {
	var requests, created atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := WithCreateTimeout(client, time.Second, func(*corev1.PersistentVolume) { created.Add(1) }).CoreV1().PersistentVolumes().Create(context.Background(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}}, metav1.CreateOptions{})
		ended <- err
	}()
	select {
	case err := <-ended:
		require.Error(t, err)
		require.Zero(t, created.Load())
	case <-time.After(time.Minute):
		require.FailNow(t, "it has not ended", "%d requests", requests.Load())
	}
}
