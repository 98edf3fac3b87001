package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestRequests(t *testing.T) {
	nobody := func(client.Client, *corev1.PersistentVolume) {}
	c := cluster(t, nobody)
	seen := make(chan flexlvmv1.VolumeRequest, 1)
	answer := func(done bool) {
		for {
			s := &flexlvmv1.NodeStorage{}
			if err := c.Get(t.Context(), client.ObjectKey{Name: "node-1"}, s); err != nil {
				return // the test is over
			}
			if len(s.Spec.Requests) == 1 && len(s.Status.Answers) == 0 {
				s.Status.Answers = []flexlvmv1.VolumeAnswer{{ID: s.Spec.Requests[0].ID, Done: done, Message: "so be it"}}
				if c.Update(t.Context(), s) == nil {
					seen <- s.Spec.Requests[0]
					return
				}
			}
		}
	}
	o := &requestOptions{wanted: overview.Wanted{Namespace: "shop", Claim: "data"}, to: volume.Retained, wait: 10 * time.Second}
	go answer(true)
	var out bytes.Buffer
	require.NoError(t, o.ask(t.Context(), c, &out))
	require.Equal(t, "so be it\n", out.String())
	got := <-seen
	require.Equal(t, flexlvmv1.VolumeRequest{ID: got.ID, Time: got.Time, Group: "flexlvm", Name: "pvc-3", FilesystemUUID: fsUUID, State: "retained"}, got)
	storage := &flexlvmv1.NodeStorage{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "node-1"}, storage))
	require.Empty(t, storage.Spec.Requests, "who asks takes the request out again")

	storage.Status.Answers = nil
	storage.Status.Orphans = []flexlvmv1.Orphan{{Pool: "flexlvm", Name: "pvc-7", State: "ready", Namespace: "shop", FilesystemUUID: fsUUID}}
	require.NoError(t, c.Update(t.Context(), storage))
	o = &requestOptions{wanted: overview.Wanted{Namespace: "shop", Volume: "pvc-7"}, to: volume.Unreferenced, wait: 10 * time.Second}
	go answer(false)
	require.ErrorContains(t, o.ask(t.Context(), c, &out), "the node says: so be it")
	require.Equal(t, "pvc-7", (<-seen).Name)

	o.wait = time.Second
	require.ErrorContains(t, o.ask(t.Context(), c, &out), "has not answered within 1s, and the request is withdrawn")
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "node-1"}, storage))
	require.Empty(t, storage.Spec.Requests)

	o.wanted.Volume = "pvc-8"
	require.ErrorContains(t, o.ask(t.Context(), c, &out), "no node reports")
}

func TestRequestsAreBounded(t *testing.T) {
	s := &flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	for i := range mostRequests {
		require.NoError(t, add(s, flexlvmv1.VolumeRequest{ID: string(rune('a' + i))}))
	}
	require.ErrorContains(t, add(s, flexlvmv1.VolumeRequest{ID: "more"}), "20 requests that it has not answered")
	s.Status.Answers = []flexlvmv1.VolumeAnswer{{ID: "a"}}
	require.NoError(t, add(s, flexlvmv1.VolumeRequest{ID: "more"}))
	require.Len(t, s.Spec.Requests, mostRequests)
	require.Equal(t, "b", s.Spec.Requests[0].ID)
}
