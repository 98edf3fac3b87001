package controlplane

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

var (
	errTaken   = errors.New("another process holds the lease or may have held it, so it is neither renewed nor released")
	errWorking = errors.New("the work has not ended, so the lease is not released and expires")
)

// A heldLock wraps the lock of a lease for an elector, which has three gaps. The elector keeps trying to
// renew a lease that another process holds already, while the work goes on: a heldLock ends the election
// immediately. The elector takes the lease again that another process held and released meanwhile, while
// the work goes on and does not know what the other one promised: a heldLock ends the election. And the
// elector releases the lease if it was the holder when it last observed it: a heldLock releases it only if
// it still is, and if no work is left that relies on it.
//
// The elector calls it from one goroutine.
type heldLock struct {
	resourcelock.Interface
	end    func()          // ends the election
	worked <-chan struct{} // closed when the work has ended
	holder string          // in the record that was last read or written
	led    bool            // this process has held the lease
	taken  bool            // and another one holds it, or may have held it since
}

// Get fails once another process may have taken the lease, so that the end of the election waits for no
// request.
func (l *heldLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if l.taken {
		return nil, nil, errTaken
	}
	record, raw, err := l.Interface.Get(ctx)
	switch {
	case err == nil:
		l.holder = record.HolderIdentity
	case apierrors.IsNotFound(err):
		l.holder = ""
	default:
		return nil, nil, err
	}
	if l.led && l.holder != l.Identity() {
		l.taken = true
		l.end()
	}
	return record, raw, err
}

// Create fails once another process may have taken the lease: the elector creates a lease that was deleted.
func (l *heldLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.taken {
		return errTaken
	}
	return l.wrote(record, l.Interface.Create(ctx, record))
}

// Update with a record without a holder releases the lease. It fails once another process may have taken the
// lease: the elector takes one that is released or has expired.
func (l *heldLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.taken {
		return errTaken
	}
	if record.HolderIdentity == "" {
		if l.holder != l.Identity() {
			return errTaken
		}
		select {
		case <-l.worked:
		default:
			return errWorking
		}
	}
	return l.wrote(record, l.Interface.Update(ctx, record))
}

// wrote records that a record was written, unless there was an error, which it returns.
func (l *heldLock) wrote(record resourcelock.LeaderElectionRecord, err error) error {
	if err == nil {
		l.holder = record.HolderIdentity
		l.led = l.led || l.holder == l.Identity()
	}
	return err
}
