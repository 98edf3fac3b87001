package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/loop"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/pause"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// The files of loop devices are recorded in the state directory, each in a record named after its ID. A file
// gets its header before its record, so a recorded file that is missing is known to have existed, and is not
// created again.
const loopDir, loopSuffix = "loops", ".json"

// AttachLoops attaches the files of all recorded loop devices, as needed after a boot. The error names each
// file for which that failed.
func (e *Engine) AttachLoops(ctx context.Context) error {
	all, unread := e.loopFiles()
	if len(all) == 0 {
		return unread
	}
	release, err := e.lockLoops(ctx)
	if err != nil {
		return err
	}
	defer release()
	failed := []error{unread}
	for _, f := range all {
		if _, err := e.attachLoop(f); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// ensureLoop creates the file for a group's loop device, unless it exists, and attaches it. It does not touch
// a file at that path that flexlvm has not created here.
func (e *Engine) ensureLoop(ctx context.Context, want volumegroup.Loop) (loop.Device, error) {
	release, err := e.lockLoops(ctx)
	if err != nil {
		return loop.Device{}, err
	}
	defer release()
	if err := checkNoSymlink(want.File); err != nil {
		return loop.Device{}, err
	}
	f, err := e.loopFile(want)
	if err != nil {
		return loop.Device{}, err
	}
	return e.attachLoop(f)
}

// MakeLoopGroup retries, because udev opens a new device for a moment, and an open device counts as in use.
const loopTries, loopPause = 5, time.Second

// MakeLoopGroup creates the volume group of a declaration with a loop device, at the request of a person on
// the node. A group that was removed is created again on the same device, once that is cleared.
func (e *Engine) MakeLoopGroup(ctx context.Context, d volumegroup.Declaration) (volumegroup.Outcome, loop.Device, error) {
	if err := d.Validate(); err != nil {
		return volumegroup.Outcome{}, loop.Device{}, err
	}
	if err := e.checkGroupNameFree(ctx, d); err != nil {
		return volumegroup.Outcome{}, loop.Device{}, err
	}
	device, err := e.ensureLoop(ctx, *d.Loop)
	if err != nil {
		return volumegroup.Outcome{}, device, err
	}
	for try := 1; ; try++ {
		out, err := e.makeRequested(ctx, d, device.ID)
		if err != nil {
			return volumegroup.Outcome{}, device, err
		}
		if out.State == volumegroup.Made || len(out.Refused) == 0 || try == loopTries {
			return out, device, nil
		}
		if err := pause.For(ctx, loopPause); err != nil {
			return volumegroup.Outcome{}, device, err
		}
	}
}

func (e *Engine) makeRequested(ctx context.Context, d volumegroup.Declaration, id string) (volumegroup.Outcome, error) {
	release, err := e.lockDeclared(ctx)
	if err != nil {
		return volumegroup.Outcome{}, err
	}
	defer release()
	confirmed := func(context.Context, volumegroup.Declaration) error { return nil }
	m := groupMaker{tools: hostTools{e}, confirm: confirmed, after: e.after, now: e.now, reads: e.diskReads}
	return m.runRequested(ctx, d, id)
}

// runRequested creates the group of one declaration, on the loop device with that ID, at the request of a
// person. It leaves the waits of the node's other declarations alone.
func (m *groupMaker) runRequested(ctx context.Context, d volumegroup.Declaration, id string) (volumegroup.Outcome, error) {
	ledger, err := m.tools.readLedger()
	if err != nil {
		return volumegroup.Outcome{}, err
	}
	pvs, err := m.tools.physicalVolumes(ctx)
	if err != nil {
		return volumegroup.Outcome{}, err
	}
	if !loopBegun(ledger, pvs, d, id) {
		// An entry that no earlier call has used.
		d.ReuseDisks = []string{id + "@" + m.now().UTC().Format(time.RFC3339Nano)}
	}
	all, err := m.carryOutAll(ctx, []volumegroup.Declaration{d})
	if err != nil {
		return volumegroup.Outcome{}, err
	}
	return all[0], nil
}

// loopBegun reports whether a killed call has begun with the loop device. This call then completes it; a
// device that is requested again would have to be blank. If the device's physical volume is gone, a person
// has cleared it since. If it is only reserved, an LVM command of the killed call may still be creating the
// physical volume.
func loopBegun(l volumegroup.Ledger, pvs []volumegroup.PhysicalVolume, d volumegroup.Declaration, id string) bool {
	taken := l.Disks[id]
	if taken.Declaration == d.Name && taken.Stage == volumegroup.DiskTaken {
		return true
	}
	return slices.ContainsFunc(pvs, func(pv volumegroup.PhysicalVolume) bool { return pv.Disk == id && pv.UUID == taken.PVUUID })
}

// checkGroupNameFree fails if a group of that name exists that was not created for the declaration. It runs before the
// file is created, which would be useless then.
func (e *Engine) checkGroupNameFree(ctx context.Context, d volumegroup.Declaration) error {
	all, err := e.lvm.PhysicalVolumes(ctx)
	if err != nil {
		return err
	}
	for _, pv := range all {
		if pv.Group == d.Group && volumegroup.DeclaredBy(pv.GroupTags) != d.Name {
			return fmt.Errorf("%w: %s; choose another name, or use it as it is", lvm.ErrGroupExists, d.Group)
		}
	}
	return nil
}

func (e *Engine) lockLoops(ctx context.Context) (func(), error) {
	return e.locks.Acquire(ctx, "loops.lock", "loop devices")
}

// checkNoSymlink refuses a path through a symbolic link: one file would have two names.
func checkNoSymlink(file string) error {
	dir := filepath.Dir(file)
	leadsTo, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("directory of the loop device's file: %w; make it first", err)
	}
	if leadsTo != dir {
		return fmt.Errorf("directory %s of the loop device's file leads through a link; name the file %s", dir, filepath.Join(leadsTo, filepath.Base(file)))
	}
	return nil
}

// loopFile returns the file, after creating and recording it unless that is done.
func (e *Engine) loopFile(want volumegroup.Loop) (loop.File, error) {
	known, unread := e.loopFiles()
	for _, f := range known {
		if f.Path == want.File {
			return f, sameSize(f, want)
		}
	}
	if unread != nil {
		return loop.File{}, fmt.Errorf("no other file is created or recorded meanwhile: %w", unread) // the unreadable record may be of this file
	}
	f, err := loop.Read(want.File)
	if errors.Is(err, os.ErrNotExist) {
		if f, err = loop.Create(want.File, want.Size); err == nil {
			e.after("make the loop device's file")
		}
	}
	if errors.Is(err, loop.ErrForeign) {
		return f, fmt.Errorf("%w; it is left as it is: name a file that does not exist", err)
	}
	if err == nil {
		err = sameSize(f, want)
	}
	if err != nil {
		return f, err
	}
	for _, other := range known {
		if other.ID == f.ID {
			return f, fmt.Errorf("file %s is a copy of %s, or that was moved; it is not attached: remove %s if that is gone for good", f.Path, other.Path, e.loopRecord(f))
		}
	}
	if err := durable.ReplaceJSON(e.loopRecord(f), f); err != nil {
		return f, fmt.Errorf("record the loop device: %w", err)
	}
	e.after("record the loop device")
	return f, nil
}

func sameSize(f loop.File, want volumegroup.Loop) error {
	if f.Size != want.Size {
		return fmt.Errorf("file %s was created for a device of %s, and %s are asked for; its size is not changed", f.Path, f.Size, want.Size)
	}
	return nil
}

func (e *Engine) loopRecord(f loop.File) string {
	return filepath.Join(e.stateDir, loopDir, f.ID+loopSuffix)
}

// attachLoop attaches a recorded file, if it is still the one that was recorded.
func (e *Engine) attachLoop(f loop.File) (loop.Device, error) {
	now, err := loop.Read(f.Path)
	if errors.Is(err, os.ErrNotExist) {
		return loop.Device{}, fmt.Errorf("file %s of loop device %s is gone, and so are its contents; it is not created again: restore it, or remove %s if nobody needs it", f.Path, f.ID, e.loopRecord(f))
	}
	if err == nil && now != f {
		err = fmt.Errorf("file %s is loop device %s, and was %s; it is not attached: restore that, or remove %s if nobody needs it", f.Path, now.ID, f.ID, e.loopRecord(f))
	}
	if err != nil {
		return loop.Device{}, err
	}
	d, there, err := loop.Attached(f.Path)
	if err != nil || there {
		return d, err
	}
	if d, err = loop.Attach(f.Path); err == nil {
		e.after("attach the loop device")
	}
	return d, err
}

// loopFiles returns the recorded files, in the order of their IDs. If some records cannot be read, it returns
// the others and an error.
func (e *Engine) loopFiles() ([]loop.File, error) {
	dir := filepath.Join(e.stateDir, loopDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what loop devices there are: %w", err)
	}
	var all []loop.File
	var unread []error
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), loopSuffix) {
			continue // the temporary file of a process that died
		}
		file := filepath.Join(dir, entry.Name())
		text, err := os.ReadFile(file)
		var f loop.File
		if err == nil {
			err = json.Unmarshal(text, &f)
		}
		if err == nil && e.loopRecord(f) != file {
			err = fmt.Errorf("it is about %q", f.ID)
		}
		if err != nil {
			unread = append(unread, fmt.Errorf("read what loop devices there are: %s: %w; correct it, or remove it if nobody needs that device", file, err))
			continue
		}
		all = append(all, f)
	}
	return all, errors.Join(unread...)
}

// attachedLoops returns the recorded files that are attached. It skips a file that cannot be read, or whose
// record cannot be read; AttachLoops returns the error.
func (e *Engine) attachedLoops() []loop.Device {
	all, _ := e.loopFiles()
	var out []loop.Device
	for _, f := range all {
		d, there, err := loop.Attached(f.Path)
		if err == nil && there && d.File == f {
			out = append(out, d)
		}
	}
	return out
}
