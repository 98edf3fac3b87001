package dm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrBusy: the mapping is open, or one of its name exists.
var ErrBusy = errors.New("in use")

// sector is the unit of device-mapper's tables.
const sector = 512

// Make creates the mapping of a raw block volume: the first size bytes of device, which is the
// number of its logical volume or of the container on that. The error is ErrBusy if a mapping of
// that name exists. A mapping without a table, which a killed call has left, is replaced.
func Make(ctx context.Context, run exec.Interface, name string, device uint64, size volume.Bytes) error {
	create := func() error {
		return dmsetup(ctx, run, "create", name, "--uuid", blockUUID+name, "--table", table(device, size))
	}
	err := create()
	if !errors.Is(err, ErrBusy) {
		return err
	}
	removed, failed := RemoveEmpty(ctx, run, name)
	if failed != nil || !removed {
		return errors.Join(err, failed)
	}
	return create()
}

// RemoveEmpty removes a mapping if it is one that a killed Make or cryptsetup has begun: it has neither a live
// nor an inactive table, and is not open. It reports whether it has removed the mapping. The caller makes sure
// that nobody is creating the mapping.
func RemoveEmpty(ctx context.Context, run exec.Interface, name string) (bool, error) {
	empty, err := isEmpty(ctx, run, name)
	if err != nil || !empty {
		return false, err
	}
	if err := Remove(ctx, run, name); err != nil {
		return false, err
	}
	return true, nil
}

func isEmpty(ctx context.Context, run exec.Interface, name string) (bool, error) {
	out, err := run.CommandContext(ctx, "dmsetup", "info", "--columns", "--noheadings", "--separator", ",", "-o", "uuid,tables_loaded,open", name).Output()
	if err != nil {
		return false, err
	}
	uuid, rest, _ := strings.Cut(strings.TrimSpace(string(out)), ",")
	_, own := splitUUID(uuid, name)
	return own && rest == "None,0", nil
}

// Resize changes the size of a mapping, which may be in use. Killed in between, it leaves the
// mapping unchanged.
func Resize(ctx context.Context, run exec.Interface, name string, device uint64, size volume.Bytes) error {
	if err := dmsetup(ctx, run, "load", name, "--table", table(device, size)); err != nil {
		return err
	}
	return dmsetup(ctx, run, "resume", name)
}

// Remove removes a mapping. The error is ErrBusy if the mapping is open: it is never forced.
func Remove(ctx context.Context, run exec.Interface, name string) error {
	return dmsetup(ctx, run, "remove", name)
}

func table(device uint64, size volume.Bytes) string {
	return fmt.Sprintf("0 %d linear %d:%d 0", int64(size.RoundUp(volume.Block)/sector), unix.Major(device), unix.Minor(device))
}

// dmsetup leaves the node in /dev to udev, and creates or removes it itself if there is no udev.
func dmsetup(ctx context.Context, run exec.Interface, args ...string) error {
	_, err := run.CommandContext(ctx, "dmsetup", append(args, "--verifyudev")...).Output()
	var exit exec.ExitError
	if errors.As(err, &exit) && strings.Contains(err.Error(), "Device or resource busy") {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}
