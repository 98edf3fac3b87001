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

// tombstoneLife is how long the record of a removed volume keeps a late call from creating the volume again:
// kubelet stops calling within minutes of the pod's end.
const tombstoneLife = time.Hour

// writeTombstone leaves a tombstone: the volume of this name is permanently gone, and no call may create it
// again. A pod that was deleted by force takes its claim along, and kubelet, before it learns of that, would
// create the volume once more, for no pod.
//
// A dataset's replica and a snapshot may be created again under their names, the latter because the CSI
// snapshotter retries a failed snapshot under the same name: their tombstones keep out only calls that began
// before they were given up (see givenUpAt).
func (d records) writeTombstone(g volume.Group, n volume.Name, kind volume.Kind, now time.Time) error {
	return d.write(g, n, record{State: volume.Doomed, Since: now, Kind: kind})
}

// givenUpAt returns when a dataset's replica, or a snapshot, was last given up, as far as this node still
// knows; zero for any other volume. If it returns another time than when a call began, the call is for a
// volume that is no longer wanted, and must not create it.
func (e *Engine) givenUpAt(spec volume.Spec) time.Time {
	if !reusesName(spec.Kind) || spec.ReadOnly {
		return time.Time{}
	}
	r, err := e.records.read(spec.Group, spec.Name)
	if err != nil || !r.freesName() {
		return time.Time{}
	}
	return r.Since
}

// freesName reports whether a record is the tombstone of a volume whose name may be used again.
func (r record) freesName() bool { return r.State == volume.Doomed && reusesName(r.Kind) }

func reusesName(k volume.Kind) bool { return k == volume.Dataset || k == volume.Snapshot }

// hasRecordOf reports whether this node has, or has had, the volume of that name, unless the name may be used
// again. A record that cannot be read counts as one of that volume.
func (d records) hasRecordOf(g volume.Group, n volume.Name) (bool, error) {
	there, err := d.exists(g, n)
	if err != nil || !there {
		return false, err
	}
	r, err := d.read(g, n)
	return err != nil || !r.freesName(), nil
}

// HadVolume reports whether this node has or had a volume of that name, so that no empty one replaces it if it
// is gone, and when it was last used. It is false once a replica or a snapshot was given up, because its name
// may be used again, and once the tombstone of any other volume has expired. The error means that the record
// cannot be looked up.
func (e *Engine) HadVolume(g volume.Group, n volume.Name) (lastUsed time.Time, is bool, err error) {
	known, err := e.records.hasRecordOf(g, n)
	if err != nil || !known {
		return time.Time{}, false, err
	}
	if r, err := e.records.read(g, n); err == nil && r.expired(e.now()) {
		return time.Time{}, false, nil
	}
	return e.records.lastUsed(g, n), true, nil
}

// expired reports whether a record is a tombstone that is too old to keep out a call.
func (r record) expired(now time.Time) bool {
	return r.State == volume.Doomed && now.Sub(r.Since) > tombstoneLife
}

// blockedByTombstone reports whether the volume has a tombstone that keeps out every call, and since when. If
// the clock was set back, that time may be in the future.
func (d records) blockedByTombstone(g volume.Group, n volume.Name, now time.Time) (since time.Time, ok bool) {
	r, err := d.read(g, n)
	if err != nil || r.State != volume.Doomed || r.freesName() || r.expired(now) {
		return time.Time{}, false
	}
	return r.Since, true
}

// expireTombstones removes tombstones of a group that are older than tombstoneLife. A tombstone dated in the
// future (the clock was set back) restarts its lifetime now, or it would stay until that date. The
// caller holds the lock of the volume held; a tombstone whose volume another call has locked, or that
// cannot be removed, stays for now.
func (e *Engine) expireTombstones(g volume.Group, held volume.Name) {
	for _, n := range e.recordedNames(g) {
		if n.IsDoomed() || !e.records.tombstoneDue(g, n, e.now()) {
			continue
		}
		var err error
		if n == held {
			err = e.records.expireTombstone(g, n, e.now())
		} else {
			err = e.tryExpireTombstone(g, n)
		}
		if err != nil {
			e.log.WithError(err).Warn(recordStays)
		}
	}
}

const recordStays = "an old record of this node stays for now"

// recordedNames returns the names of the volumes of a group that have a record.
func (e *Engine) recordedNames(g volume.Group) (all []volume.Name) {
	entries, err := os.ReadDir(filepath.Join(string(e.records), string(g)))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		e.log.WithError(err).Warn("old records of this node stay for now")
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), "-") { // the temporary file of a record that is being written
			all = append(all, volume.Name(entry.Name()))
		}
	}
	return all
}

// removeRecordsOfGone removes the records of doomed volumes that are gone: the call that removed the volume was
// killed before it removed the record, and no later call is for that volume. Only removals call it, not
// mounts, because it may run LVM.
func (e *Engine) removeRecordsOfGone(ctx context.Context, g volume.Group) {
	for _, n := range e.recordedNames(g) {
		if !n.IsDoomed() {
			continue
		}
		if err := e.removeRecordIfGone(ctx, g, n); err != nil {
			e.log.WithError(err).Warn(recordStays)
		}
	}
}

// removeRecordIfGone removes a record if LVM sees the group without its volume. While a volume is being wiped, its
// record holds the progress.
func (e *Engine) removeRecordIfGone(ctx context.Context, g volume.Group, n volume.Name) error {
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

// tombstoneDue reports whether there is a tombstone that is too old, or dated in the future.
func (d records) tombstoneDue(g volume.Group, n volume.Name, now time.Time) bool {
	r, err := d.read(g, n)
	return err == nil && r.State == volume.Doomed && (r.expired(now) || r.Since.After(now))
}

// tryExpireTombstone calls expireTombstone under the volume's lock, if that is free: a volume of the same name may have
// been created meanwhile.
func (e *Engine) tryExpireTombstone(g volume.Group, n volume.Name) error {
	release, acquired, err := e.locks.Try(volumeLock(g, n))
	if err != nil || !acquired {
		return err
	}
	defer release()
	return e.records.expireTombstone(g, n, e.now())
}

// expireTombstone removes a tombstone that is too old, and sets the date of one from the future to now. It
// removes one whose name may be used again (freesName) in both cases.
func (d records) expireTombstone(g volume.Group, n volume.Name, now time.Time) error {
	if !d.tombstoneDue(g, n, now) {
		return nil
	}
	if _, stands := d.blockedByTombstone(g, n, now); stands {
		return d.writeTombstone(g, n, "", now)
	}
	return d.remove(g, n)
}
