package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// tombstoneLife is how long a removed volume's record keeps a late call from
// making it again: kubelet stops within minutes of the pod's end.
const tombstoneLife = time.Hour

// bury leaves a tombstone: the volume of this name is gone for good, and nobody
// may make it again. A pod that was deleted by force takes its claim along, and
// kubelet, which has not heard of it yet, would make the volume once more, for
// nobody.
//
// The replica of a dataset and a snapshot may be made again under their names, the latter
// because CSI's snapshotter tries one that failed again by the same name: their tombstones keep
// out only those calls that had begun before they were given up (see givenUp).
func (d records) bury(g volume.Group, n volume.Name, kind volume.Kind, now time.Time) error {
	return d.write(g, n, record{State: volume.Doomed, Since: now, Kind: kind})
}

// givenUp returns when the replica of a dataset, or a snapshot, was last given up, as far as this node
// still knows; zero for any other volume. If it returns another time than when a call began, the call
// is for a volume that nobody wants any more, and must not make it.
func (e *Engine) givenUp(spec volume.Spec) time.Time {
	if !reusesName(spec.Kind) || spec.ReadOnly {
		return time.Time{}
	}
	r, err := e.records.read(spec.Group, spec.Name)
	if err != nil || !r.leavesName() {
		return time.Time{}
	}
	return r.Since
}

// leavesName reports whether a record is the tombstone of a volume whose name may be used again.
func (r record) leavesName() bool { return r.State == volume.Doomed && reusesName(r.Kind) }

func reusesName(k volume.Kind) bool { return k == volume.Dataset || k == volume.Snapshot }

// served reports whether this node has, or has had, the volume of that name which is meant. A
// record that cannot be read counts as one of it.
func (d records) served(g volume.Group, n volume.Name) (bool, error) {
	there, err := d.exists(g, n)
	if err != nil || !there {
		return false, err
	}
	r, err := d.read(g, n)
	return err != nil || !r.leavesName(), nil
}

// Served reports whether this node has or had a volume of that name, so that none is made anew if it is
// gone, and when it was last used. It is false once a replica or a snapshot was given up, because its
// name may be used again, and once the tombstone of any other volume has expired. The error is that of a
// record that cannot be looked up.
func (e *Engine) Served(g volume.Group, n volume.Name) (lastUsed time.Time, is bool, err error) {
	known, err := e.records.served(g, n)
	if err != nil || !known {
		return time.Time{}, false, err
	}
	if r, err := e.records.read(g, n); err == nil && r.expired(e.now()) {
		return time.Time{}, false, nil
	}
	return e.records.lastUsed(g, n), true, nil
}

// expired reports whether a record is a tombstone that is too old to keep a call out.
func (r record) expired(now time.Time) bool {
	return r.State == volume.Doomed && now.Sub(r.Since) > tombstoneLife
}

// buried reports whether a tombstone stands for the volume that keeps every call out, and
// since when. The clock may have been set back since.
func (d records) buried(g volume.Group, n volume.Name, now time.Time) (since time.Time, ok bool) {
	r, err := d.read(g, n)
	if err != nil || r.State != volume.Doomed || r.leavesName() || r.expired(now) {
		return time.Time{}, false
	}
	return r.Since, true
}

// sweep removes tombstones of a group that are older than tombstoneLife. A tombstone dated in the
// future (the clock was set back) restarts its lifetime now, or it would stay until that date. The
// caller holds the lock of the volume held; a tombstone whose volume another call has locked, or that
// cannot be removed, stays for now.
func (e *Engine) sweep(g volume.Group, held volume.Name) {
	for _, n := range e.recorded(g) {
		if n.IsDoomed() || !e.records.outlived(g, n, e.now()) {
			continue
		}
		var err error
		if n == held {
			err = e.records.renew(g, n, e.now())
		} else {
			err = e.sweepOne(g, n)
		}
		if err != nil {
			e.log.WithError(err).Warn(recordStays)
		}
	}
}

const recordStays = "an old record of this node stays for now"

// recorded returns the names of the volumes of a group that have a record.
func (e *Engine) recorded(g volume.Group) (all []volume.Name) {
	entries, err := os.ReadDir(filepath.Join(string(e.records), string(g)))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		e.log.WithError(err).Warn("old records of this node stay for now")
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), "-") { // that of a record that is being written
			all = append(all, volume.Name(entry.Name()))
		}
	}
	return all
}

// sweepDoomed removes the records of doomed volumes that are gone: the call that removed one was
// killed before it could, and nobody asks for that volume again. Mounts leave it to removals, as it
// may run LVM.
func (e *Engine) sweepDoomed(ctx context.Context, g volume.Group) {
	for _, n := range e.recorded(g) {
		if !n.IsDoomed() {
			continue
		}
		if err := e.sweepGone(ctx, g, n); err != nil {
			e.log.WithError(err).Warn(recordStays)
		}
	}
}

// sweepGone removes a record if LVM sees the group without its volume. That of a volume that is
// being wiped says how far that has come.
func (e *Engine) sweepGone(ctx context.Context, g volume.Group, n volume.Name) error {
	release, acquired, err := e.locks.Try(volumeLock(g, n))
	if err != nil || !acquired {
		return err
	}
	defer release()
	if _, err := e.lvm.Volume(ctx, g, n); !errors.Is(err, lvm.ErrNoVolume) {
		return err
	}
	return e.records.remove(g, n)
}

// outlived reports whether a tombstone exists that is too old, or dated in the future.
func (d records) outlived(g volume.Group, n volume.Name, now time.Time) bool {
	r, err := d.read(g, n)
	return err == nil && r.State == volume.Doomed && (r.expired(now) || r.Since.After(now))
}

// sweepOne takes the volume's lock, if that is free, and looks again: a volume of the
// same name may have been made meanwhile.
func (e *Engine) sweepOne(g volume.Group, n volume.Name) error {
	release, acquired, err := e.locks.Try(volumeLock(g, n))
	if err != nil || !acquired {
		return err
	}
	defer release()
	return e.records.renew(g, n, e.now())
}

// renew removes a tombstone that is too old, and dates one from the future now. One whose name may be
// used again (leavesName) is removed in both cases.
func (d records) renew(g volume.Group, n volume.Name, now time.Time) error {
	if !d.outlived(g, n, now) {
		return nil
	}
	if _, stands := d.buried(g, n, now); stands {
		return d.bury(g, n, "", now)
	}
	return d.remove(g, n)
}
