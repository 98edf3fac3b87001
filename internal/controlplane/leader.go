package controlplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// ErrLeaseLost means that another process may already be the leader, so this one has to exit
// immediately.
var ErrLeaseLost = errors.New("the leader lease is lost: the API server could not be reached in time, or another provisioner has taken it, or it was deleted")

// Lease is the leader lease that the provisioners of a cluster share.
type Lease struct {
	Name      string // of the object
	Namespace string
	Identity  string // of this process; unique
	// Duration is how long other processes wait for a leader that died without releasing the lease.
	Duration time.Duration
	// Renew is how long the leader tries to renew the lease before it gives up; less than Duration.
	Renew time.Duration
	// Retry is how often the lease is checked or renewed; less than Renew.
	Retry time.Duration
}

// Lead waits for the lease, calls work while holding it, and returns when work has returned, by itself
// or because ctx has ended. It releases the lease only then, so that no two processes work at the same
// time and a successor need not wait. The context of work ends with ctx. If the lease is lost, Lead
// returns ErrLeaseLost without waiting for work; the lease then stays until it expires, unless another
// process has taken it already.
func (l Lease) Lead(ctx context.Context, client kubernetes.Interface, health *leaderelection.HealthzAdaptor, work func(context.Context)) error {
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, l.Namespace, l.Name,
		client.CoreV1(), client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: l.Identity})
	if err != nil {
		return fmt.Errorf("create the leader lease: %w", err)
	}
	// The lease is held beyond ctx until work has returned.
	leaseCtx, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	leading, worked := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            &heldLock{Interface: lock, end: release, worked: worked},
		LeaseDuration:   l.Duration,
		RenewDeadline:   l.Renew,
		RetryPeriod:     l.Retry,
		ReleaseOnCancel: true,
		Name:            l.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				close(leading)
				work(ctx)
				close(worked)
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				klog.FromContext(ctx).Info("Leader is", "identity", identity, "me", identity == l.Identity)
			},
		},
	})
	if err != nil {
		return fmt.Errorf("configure the leader lease: %w", err)
	}
	health.SetLeaderElection(elector)
	ended := make(chan struct{})
	go func() {
		elector.Run(leaseCtx)
		close(ended)
	}()

	select {
	case <-ended:
		return ErrLeaseLost
	case <-worked: // work has failed
	case <-ctx.Done():
	}
	select {
	case <-leading:
		select {
		case <-worked:
		case <-ended: // lost while the workers were finishing
			return ErrLeaseLost
		}
	default:
	}
	release()
	<-ended
	return nil
}
