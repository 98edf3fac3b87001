//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// The sizes are no multiples of an extent, so that growing exposes part of the stale data behind the old end.
const (
	deviceSize      = 5*volume.MiB + volume.Block
	grownDevice     = 13*volume.MiB + 3*volume.Block
	deviceCopy      = 17*volume.MiB + volume.Block
	staleExtents    = 12 // occupied by the device, its snapshot and its copy
	staleDeviceName = "stale"
)

// deviceFiles are the offsets on a raw block volume of what are files on other volumes.
var deviceFiles = map[string]int64{"front": 0, "late": 4 << 20, "back": int64(deviceSize)}

// deviceSteps returns the life of a raw block volume on blocks that are full of stale data.
func deviceSteps() []step {
	raw := specOf("raw", volume.Linear)
	raw.Size, raw.FSType = deviceSize, volume.Raw
	shot := snapshotOf(raw, "rawshot")
	restored := raw
	restored.Name, restored.Size, restored.CloneOf = "rawrestored", deviceCopy, shot.Name
	return []step{
		staleStep(),
		mountStep(raw),
		writeStep(raw, "front", 2<<20),
		expandDeviceStep(raw, map[string]int64{"front": 2 << 20}),
		writeStep(raw, "back", 1<<20),
		snapshotStep(shot),
		writeStep(raw, "late", 1<<20),
		fullCopyStep(restored),
	}
}

// staleStep fills the blocks that the next volumes use.
func staleStep() step {
	return step{
		name: "leave stale blocks",
		do: func(*world) error {
			// A volume that exists already is from before a power cut.
			_, err := sh("! lvs %[1]s/%[2]s >/dev/null 2>&1 || lvremove -q --yes %[1]s/%[2]s; "+
				"lvcreate -q --yes -Wn -Zn -l%[3]d -n %[2]s %[1]s && yes stale | dd of=/dev/%[1]s/%[2]s bs=1M count=%[4]d iflag=fullblock conv=fsync status=none && lvremove -q --yes %[1]s/%[2]s",
				group, staleDeviceName, staleExtents, staleExtents*4)
			if err != nil {
				return err
			}
			f, err := os.Open(diskPath)
			if err != nil {
				return err
			}
			return errors.Join(f.Sync(), f.Close()) // LVM flushes nothing
		},
		then: func(promises) {},
	}
}

// expandDeviceStep grows a raw block volume. Before that, as after a power cut, its pod uses it again with the old
// size or the new one, and sees only what the pod has written.
func expandDeviceStep(s volume.Spec, files map[string]int64) step {
	return step{
		name: fmt.Sprintf("expand %s", s.Name),
		do: func(w *world) error {
			if err := w.mount(w.engine, s); err != nil {
				return err
			}
			size, err := w.size(s)
			if err != nil {
				return err
			}
			if size != s.Size && size != grownDevice {
				return fmt.Errorf("the device is of %d bytes, and neither of %d nor of %d", int64(size), int64(s.Size), int64(grownDevice))
			}
			if err := checkDevice(w.target(s.Name), size, files); err != nil {
				return err
			}
			return w.expand(s, grownDevice)
		},
		then: func(p promises) { p.change(s.Name, func(v *promise) { v.size = grownDevice }) },
	}
}

// writeDevice writes a file's content at its offset on a device, and syncs it.
func writeDevice(path, file string, size int64) error {
	at, known := deviceFiles[file]
	if !known {
		return fmt.Errorf("file %s has no place on a device", file)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content(file, size), at)
	return errors.Join(err, f.Sync(), f.Close())
}

// checkDevice checks that the first size bytes of a device hold these files, and zeros everywhere else.
func checkDevice(path string, size volume.Bytes, files map[string]int64) error {
	want := make([]byte, size)
	for file, n := range files {
		copy(want[deviceFiles[file]:], content(file, n))
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	have := make([]byte, size)
	_, err = io.ReadFull(f, have)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	for i := range want {
		switch {
		case have[i] == want[i]:
		case want[i] == 0:
			return fmt.Errorf("it shows at byte %d what it was never given: %q", i, have[i:min(i+16, len(have))])
		default:
			return fmt.Errorf("what was fsynced is lost at byte %d", i)
		}
	}
	return nil
}
