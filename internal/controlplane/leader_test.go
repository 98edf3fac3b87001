package controlplane_test

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/flexlvm/flexlvm/internal/controlplane"
)

func lease(identity string) controlplane.Lease {
	return controlplane.Lease{
		Name: "flexlvm.io", Namespace: "flexlvm-system", Identity: identity,
		Duration: 2 * time.Second, Renew: time.Second, Retry: 100 * time.Millisecond,
	}
}

func health() *leaderelection.HealthzAdaptor {
	return leaderelection.NewLeaderHealthzAdaptor(time.Second)
}

func TestLeadGivesTheLeaseBackAfterTheWork(t *testing.T) {
	client := fake.NewClientset()
	ctx, cancel := context.WithCancel(t.Context())
	var working, overlapped atomic.Bool
	started := make(chan string, 2)
	work := func(name string) func(context.Context) {
		return func(ctx context.Context) {
			if working.Swap(true) {
				overlapped.Store(true)
			}
			started <- name
			<-ctx.Done()
			time.Sleep(300 * time.Millisecond) // a worker finishes its current item
			working.Store(false)
		}
	}
	long := func(identity string) controlplane.Lease { // long enough for a busy machine
		l := lease(identity)
		l.Duration, l.Renew = 2*time.Minute, time.Minute
		return l
	}
	first := make(chan error, 1)
	go func() { first <- long("first").Lead(ctx, client, health(), work("first")) }()
	require.Equal(t, "first", <-started)

	ctx2, cancel2 := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() { second <- long("second").Lead(ctx2, client, health(), work("second")) }()

	stopped := time.Now()
	cancel()
	require.NoError(t, <-first)
	require.Equal(t, "second", <-started)
	require.Less(t, time.Since(stopped), time.Minute, "the successor waited for the lease to run out")
	require.False(t, overlapped.Load())
	cancel2()
	require.NoError(t, <-second)

	got, err := client.CoordinationV1().Leases("flexlvm-system").Get(t.Context(), "flexlvm.io", metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, *got.Spec.HolderIdentity)
}

func TestLeadEndsWithoutEverLeading(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("forbidden")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	require.NoError(t, lease("only").Lead(ctx, client, health(), func(context.Context) { t.Error("works without the lease") }))
}

func TestLeadEndsAtOnceWhenTheLeaseIsLost(t *testing.T) {
	client := fake.NewClientset()
	var away atomic.Bool
	client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away.Load(), nil, errors.New("connection refused")
	})
	err := lease("only").Lead(t.Context(), client, health(), func(ctx context.Context) {
		away.Store(true)
		<-ctx.Done() // the loss of the lease does not end it
	})
	require.ErrorIs(t, err, controlplane.ErrLeaseLost)
}

// A leader that sees its successor, or that its successor has released the lease, does not work on until it would have
// to have renewed the lease.
func TestLeadEndsAtOnceWhenTheLeaseIsTaken(t *testing.T) {
	for _, holder := range []string{"successor", ""} {
		t.Run("held by "+strconv.Quote(holder), func(t *testing.T) { endsAtOnce(t, holder) })
	}
}

func endsAtOnce(t *testing.T, successor string) {
	client := fake.NewClientset()
	var taken atomic.Bool
	client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return taken.Load(), nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "flexlvm.io", errors.New("it has changed"))
	})
	client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return taken.Load(), &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &successor}}, nil
	})
	l := lease("only")
	l.Duration, l.Renew = 2*time.Minute, time.Minute
	began := time.Now()
	err := l.Lead(t.Context(), client, health(), func(ctx context.Context) {
		taken.Store(true)
		<-ctx.Done()
	})
	require.ErrorIs(t, err, controlplane.ErrLeaseLost)
	require.Less(t, time.Since(began), 30*time.Second)
}

func TestLeadRefusesTimesThatCannotWork(t *testing.T) {
	l := lease("only")
	l.Renew = l.Duration
	err := l.Lead(t.Context(), fake.NewClientset(), health(), func(context.Context) {})
	require.ErrorContains(t, err, "configure the leader lease")
}
