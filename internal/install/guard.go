package install

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// What Check found.
var (
	// ErrReplaced: somebody has put another file in the driver's place since. It
	// is left there: during an upgrade it is the newer installer's.
	ErrReplaced = errors.New("the driver was replaced by another installation")
)

// A Guard watches over a driver that was installed.
type Guard struct {
	place  Place
	binary string
	file   unix.Stat_t
}

// Guard starts watching over the driver, which Install has just made a copy of
// binary. It may have gone since: the first Check installs it again.
func (p Place) Guard(binary string) (*Guard, error) {
	g := &Guard{place: p, binary: binary}
	if err := unix.Lstat(p.Driver(), &g.file); err != nil && !gone(err) {
		return nil, fmt.Errorf("look at the driver: %w", err)
	}
	return g, nil
}

// Check installs the driver again where it has gone or was damaged, and leaves
// it alone, with ErrReplaced, where another file took its place.
func (g *Guard) Check(ctx context.Context) (changed bool, err error) {
	var now unix.Stat_t
	err = unix.Lstat(g.place.Driver(), &now)
	if err == nil && !same(now, g.file) {
		return false, ErrReplaced
	}
	if err != nil && !gone(err) {
		return false, fmt.Errorf("look at the driver: %w", err)
	}
	changed, err = g.place.Install(ctx, g.binary)
	if err != nil {
		return changed, err
	}
	if err := unix.Lstat(g.place.Driver(), &g.file); err != nil {
		return changed, fmt.Errorf("look at the driver: %w", err)
	}
	return changed, nil
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
