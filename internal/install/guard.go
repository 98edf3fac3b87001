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
	// ErrReplaced: another file is in the driver's place now. It is left there: during an
	// upgrade it is the newer installer's.
	ErrReplaced = errors.New("the driver was replaced by another installation")
)

// A Guard watches over an installed driver.
type Guard struct {
	place  Place
	binary string
	file   unix.Stat_t
}

// Guard returns a Guard of the driver, which Install has just made a copy of binary. If
// it has gone meanwhile, the first Check installs it again.
func (p Place) Guard(binary string) (*Guard, error) {
	g := &Guard{place: p, binary: binary}
	if err := unix.Lstat(p.Driver(), &g.file); err != nil && !gone(err) {
		return nil, fmt.Errorf("look at the driver: %w", err)
	}
	return g, nil
}

// Check reinstalls the driver if it is gone or damaged. If another file has taken its
// place, Check leaves that alone and returns ErrReplaced.
func (g *Guard) Check(ctx context.Context) (changed bool, err error) {
	if err := g.own(); err != nil {
		return false, err
	}
	// Also where the installation fails then: the next Check must not take it for another's.
	return g.place.install(ctx, g.binary, g.own, func() error {
		if err := unix.Lstat(g.place.Driver(), &g.file); err != nil && !gone(err) {
			return fmt.Errorf("look at the driver: %w", err)
		}
		return nil
	})
}

// own fails with ErrReplaced if another file than the Guard's is in the driver's place.
func (g *Guard) own() error {
	var now unix.Stat_t
	switch err := unix.Lstat(g.place.Driver(), &now); {
	case err == nil && !same(now, g.file):
		return ErrReplaced
	case err != nil && !gone(err):
		return fmt.Errorf("look at the driver: %w", err)
	}
	return nil
}

// checkPatience bounds one Check: another installer may hold the lock.
const checkPatience = 2 * time.Minute

// Keep looks after the driver, which Install has just made a copy of binary, until ctx
// ends: now and then at each interval it puts back what has gone or was damaged.
func (p Place) Keep(ctx context.Context, binary string, interval time.Duration, log logrus.FieldLogger) error {
	guard, err := p.Guard(binary)
	if err != nil {
		return err
	}
	Every(ctx, interval, func() {
		bounded, cancel := context.WithTimeout(ctx, checkPatience)
		defer cancel()
		changed, err := guard.Check(bounded)
		switch {
		case errors.Is(err, ErrReplaced):
			log.Debug(err)
		case err != nil:
			log.WithError(err).Error("cannot look after the driver; it is tried again")
		case changed:
			log.Warn("the driver had gone or was damaged; it is installed again")
		}
	})
	return nil
}

func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }

// Every calls f now and then at each interval, until ctx ends.
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
	}
}
