package install

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// Errors of Check.
var (
	// ErrReplaced: another file is in the driver's place. Check leaves it there: during an upgrade it is the
	// newer installer's.
	ErrReplaced = errors.New("the driver was replaced by another installation")
)

// again is the advice on how to reinstall a driver that another installation has replaced.
const again = "delete this pod to install its driver again, or outside of a pod run `flexlvm install`"

// A Guard reinstalls an installed driver if it is deleted or damaged.
type Guard struct {
	place  Place
	binary string
	file   unix.Stat_t
}

// Guard returns a Guard of the driver, which Install has just created as a copy of binary. If the driver has
// been deleted meanwhile, the first Check reinstalls it.
func (p Place) Guard(binary string) (*Guard, error) {
	g := &Guard{place: p, binary: binary}
	if err := unix.Lstat(p.Driver(), &g.file); err != nil && !gone(err) {
		return nil, fmt.Errorf("check the driver: %w", err)
	}
	return g, nil
}

// Check reinstalls the driver if it is gone or damaged. If another file is in its place, Check leaves that file
// alone and returns ErrReplaced.
func (g *Guard) Check(ctx context.Context) (changed bool, err error) {
	if err := g.own(); err != nil {
		return false, err
	}
	// The new file is recorded even if the installation then fails, so that the next Check does not take it for
	// another installer's.
	return g.place.install(ctx, g.binary, g.own, func() error {
		if err := unix.Lstat(g.place.Driver(), &g.file); err != nil && !gone(err) {
			return fmt.Errorf("check the driver: %w", err)
		}
		return nil
	})
}

// own returns ErrReplaced if a file other than the Guard's is in the driver's place.
func (g *Guard) own() error {
	var now unix.Stat_t
	switch err := unix.Lstat(g.place.Driver(), &now); {
	case err == nil && !same(now, g.file):
		return ErrReplaced
	case err != nil && !gone(err):
		return fmt.Errorf("check the driver: %w", err)
	}
	return nil
}

// checkTimeout bounds one Check: another installer may hold the lock.
const checkTimeout = 2 * time.Minute

// Keep runs Check immediately and then once per interval until ctx ends. Install must have just created the
// driver as a copy of binary.
func (p Place) Keep(ctx context.Context, binary string, interval time.Duration, log logrus.FieldLogger) error {
	guard, err := p.Guard(binary)
	if err != nil {
		return err
	}
	k := keeper{guard: guard, log: log}
	Every(ctx, interval, func() { k.check(ctx) })
	return nil
}

// A keeper runs Check and logs its outcome.
type keeper struct {
	guard    *Guard
	log      logrus.FieldLogger
	replaced bool // the last Check returned ErrReplaced, which is logged once
}

func (k *keeper) check(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	changed, err := k.guard.Check(ctx)
	was := k.replaced
	k.replaced = errors.Is(err, ErrReplaced)
	switch {
	case k.replaced && was:
	case k.replaced:
		k.log.Warnf("%v, which stays; %s", err, again)
	case err != nil:
		k.log.WithError(err).Error("cannot check or restore the driver; it is retried")
	case changed:
		k.log.Warn("the driver had gone or was damaged; it is installed again")
	}
}

func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }

// Every calls f immediately and then once per interval until ctx ends.
func Every(ctx context.Context, interval time.Duration, f func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		f()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if ctx.Err() != nil { // select takes any case that is ready
			return
		}
	}
}
