package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/freeze"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// frozenFile, in the lock directory, lists the volumes that are about to be frozen. Neither that directory
// nor a freeze survives a reboot.
const frozenFile = "frozen.json"

// frozen is a volume whose file system may be frozen.
type frozen struct {
	Group  volume.Group
	Name   volume.Name
	UUID   string // LVM's
	FSType volume.FSType
	LUKS   string `json:",omitempty"`
}

// writeFrozen records which volumes are about to be frozen, after it has thawed those that an
// interrupted call left frozen. Until release, no other call can freeze volumes.
func (e *Engine) writeFrozen(ctx context.Context, volumes []frozen) (release func(), err error) {
	file, key := frozenLock()
	release, err = e.locks.Acquire(ctx, file, key)
	if err != nil {
		return nil, err
	}
	if err = e.thawLeft(ctx); err == nil {
		err = e.replaceFrozen(volumes)
	}
	if err != nil {
		release()
		return nil, err
	}
	e.after("record frozen")
	return release, nil
}

func frozenLock() (file, key string) { return "frozen.lock", "frozen volumes" }

func (e *Engine) frozenPath() string { return filepath.Join(e.lockDir, frozenFile) }

func (e *Engine) replaceFrozen(volumes []frozen) error {
	text, err := json.Marshal(volumes)
	if err == nil {
		err = durable.ReplaceFile(e.frozenPath(), append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write down which volumes are frozen: %w", err)
	}
	return nil
}

func (e *Engine) removeFrozen() error {
	if err := os.Remove(e.frozenPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the list of frozen volumes: %w", err)
	}
	return nil
}

// ThawLeft thaws volumes that were left frozen because a call's process was killed, and so was its
// companion, which should have thawed them. It is no error if there are none. While a call has volumes
// frozen, ThawLeft does nothing.
func (e *Engine) ThawLeft(ctx context.Context) error {
	if _, err := os.Stat(e.frozenPath()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	release, acquired, err := e.locks.Try(frozenLock())
	if err != nil || !acquired {
		return err
	}
	defer release()
	return e.thawLeft(ctx)
}

// thawLeft is ThawLeft under the lock.
func (e *Engine) thawLeft(ctx context.Context) error {
	text, err := os.ReadFile(e.frozenPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var volumes []frozen
	if err == nil {
		err = json.Unmarshal(text, &volumes)
	}
	if err != nil {
		return fmt.Errorf("read which volumes were left frozen: %w; thaw them (`fsfreeze --unfreeze` on their directories), and remove %s", err, e.frozenPath())
	}
	var failures []error
	for _, v := range volumes {
		if err := e.thaw(ctx, v); err != nil {
			failures = append(failures, fmt.Errorf("thaw volume %s/%s, which was left frozen: %w", v.Group, v.Name, err))
		}
	}
	if err := errors.Join(failures...); err != nil {
		return err
	}
	return e.removeFrozen()
}

// thaw thaws the file system of one volume, if that is still the same volume and in use: a frozen file
// system stays in use even when it is no longer mounted anywhere.
func (e *Engine) thaw(ctx context.Context, v frozen) error {
	d, err := e.usableDevice(ctx, v.Group, v.Name)
	if errors.Is(err, lvm.ErrNoDevice) || err == nil && d.VolumeUUID != v.UUID {
		return nil
	}
	if err != nil {
		return err
	}
	on, err := e.openedContent(ctx, d, volume.Tags{FSType: v.FSType, LUKS: v.LUKS})
	if errors.Is(err, dm.ErrNoMapping) {
		return nil
	}
	if err != nil {
		return err
	}
	probe, err := os.OpenFile(on.path, os.O_RDONLY|unix.O_EXCL, 0)
	if err == nil {
		return probe.Close() // not mounted anywhere
	}
	if !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("open device: %w", err)
	}
	fs, err := mount.Attach(on.info().mountType, on.path, false)
	if err != nil {
		return err
	}
	thawed, err := freeze.Thaw(fs.Root())
	if thawed {
		e.log.WithField("volume", string(v.Group)+"/"+string(v.Name)).Warn("thawed a volume that a killed process had left frozen")
	}
	return errors.Join(err, fs.Close())
}
