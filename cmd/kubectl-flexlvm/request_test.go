package main

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

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
	require.NoError(t, o.submit(t.Context(), c, &out))
	require.Equal(t, "so be it (released 2026-11-20 18:02:11Z, on node node-1)\n", out.String())
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
	require.ErrorContains(t, o.submit(t.Context(), c, &out), "node node-1 reports: so be it")
	require.Equal(t, "pvc-7", (<-seen).Name)

	o.wait = time.Second
	require.ErrorContains(t, o.submit(t.Context(), c, &out), "node node-1 did not answer within 1s. The request for volume flexlvm/pvc-7 was withdrawn, but if the node had already started with it, it is carried out nevertheless: check its state with kubectl flexlvm volumes --node node-1")
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "node-1"}, storage))
	require.Empty(t, storage.Spec.Requests)

	storage.Status.Answers = nil
	require.NoError(t, c.Update(t.Context(), storage))
	// The answer arrives between the last read and the withdrawal.
	late := interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
		Update: func(ctx context.Context, to client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			s := object.(*flexlvmv1.NodeStorage)
			if len(s.Spec.Requests) > 0 {
				return to.Update(ctx, object, options...)
			}
			now := &flexlvmv1.NodeStorage{}
			require.NoError(t, to.Get(ctx, client.ObjectKey{Name: "node-1"}, now))
			if len(now.Status.Answers) == 0 {
				now.Status.Answers = []flexlvmv1.VolumeAnswer{{ID: now.Spec.Requests[0].ID, Done: true, Message: "at the last moment"}}
				require.NoError(t, to.Update(ctx, now))
			}
			return to.Update(ctx, object, options...)
		},
	})
	out.Reset()
	require.NoError(t, o.submit(t.Context(), late, &out))
	require.Equal(t, "at the last moment (on node node-1)\n", out.String())

	// The API server is unreachable when the request is withdrawn.
	away := interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
		Update: func(ctx context.Context, to client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			if len(object.(*flexlvmv1.NodeStorage).Spec.Requests) == 0 {
				return errors.New("no route to host")
			}
			return to.Update(ctx, object, options...)
		},
	})
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "node-1"}, storage))
	storage.Status.Answers = nil
	require.NoError(t, c.Update(t.Context(), storage))
	err := o.submit(t.Context(), away, &out)
	require.ErrorContains(t, err, "could not be removed from NodeStorage node-1 (update NodeStorage node-1: no route to host), so the node may still carry it out")
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "node-1"}, storage))
	require.Len(t, storage.Spec.Requests, 1)
	require.ErrorContains(t, err, "spec.requests, id "+storage.Spec.Requests[0].ID)

	o.wanted.Volume = "pvc-8"
	require.ErrorContains(t, o.submit(t.Context(), c, &out), "no node reports")
}

// The write of a request fails although the API server may have it: the request is withdrawn all the
// same.
func TestRequestsWhoseWriteIsInDoubt(t *testing.T) {
	nobody := func(client.Client, *corev1.PersistentVolume) {}
	for name, tt := range map[string]struct {
		write bool
		fails func(cancel func()) error
		says  string
		alone bool // it is the only write
	}{
		"the answer is lost":      {true, func(func()) error { return errors.New("connection reset") }, "connection reset. The request for volume flexlvm/pvc-3 was withdrawn, but if the node had already started with it", false},
		"a gateway has no answer": {true, func(func()) error { return apierrors.NewTimeoutError("slow", 1) }, "was withdrawn, but if", false},
		"Ctrl-C":                  {true, func(cancel func()) error { cancel(); return context.Canceled }, "context canceled. The request for volume flexlvm/pvc-3 was withdrawn, but if", false},
		"it may arrive late":      {false, func(func()) error { return errors.New("connection reset") }, "is not in NodeStorage node-1. If it arrives there late, remove the request with kubectl edit nodestorage node-1 (spec.requests, id ", false},
		"it is refused": {false, func(func()) error {
			return apierrors.NewForbidden(flexlvmv1.GroupVersion.WithResource("nodestorages").GroupResource(), "node-1", errors.New("no"))
		}, "is forbidden: no", true},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, nobody)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			writes := 0
			lost := interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, to client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if ctx.Err() != nil {
						return ctx.Err()
					}
					return to.Get(ctx, key, object, options...)
				},
				Update: func(ctx context.Context, to client.WithWatch, object client.Object, options ...client.UpdateOption) error {
					if writes++; writes > 1 {
						return to.Update(ctx, object, options...)
					}
					if tt.write {
						require.NoError(t, to.Update(ctx, object, options...))
					}
					return tt.fails(cancel)
				},
			})
			o := &requestOptions{wanted: overview.Wanted{Namespace: "shop", Claim: "data"}, to: volume.Unreferenced, wait: time.Minute}
			err := o.submit(ctx, lost, &bytes.Buffer{})
			require.ErrorContains(t, err, tt.says)
			require.Equal(t, tt.alone, writes == 1, "nothing is taken back where nothing was written")
			storage := &flexlvmv1.NodeStorage{}
			require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "node-1"}, storage))
			require.Empty(t, storage.Spec.Requests)
		})
	}
}

func TestRequestsAreBounded(t *testing.T) {
	s := &flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	for i := range maxRequests {
		require.NoError(t, addRequest(s, flexlvmv1.VolumeRequest{ID: string(rune('a' + i))}))
	}
	require.ErrorContains(t, addRequest(s, flexlvmv1.VolumeRequest{ID: "more"}), "20 unanswered requests")
	s.Status.Answers = []flexlvmv1.VolumeAnswer{{ID: "a"}}
	require.NoError(t, addRequest(s, flexlvmv1.VolumeRequest{ID: "more"}))
	require.Len(t, s.Spec.Requests, maxRequests)
	require.Equal(t, "b", s.Spec.Requests[0].ID)
}
