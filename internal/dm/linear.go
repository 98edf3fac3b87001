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

// ErrBusy: somebody has the mapping open.
var ErrBusy = errors.New("in use")

// sector is the unit of device-mapper's tables.
const sector = 512

// Make makes the mapping of a raw block volume: the first size bytes of device, which is the number of
// its logical volume or of the container on that. The error is ErrBusy if there is a mapping of that
// name. One without a table, which a call that was killed has left, is replaced.
func Make(ctx context.Context, run exec.Interface, name string, device uint64, size volume.Bytes) error {
	create := func() error {
		return dmsetup(ctx, run, "create", name, "--uuid", blockUUID+name, "--table", table(device, size))
	}
	err := create()
	if !errors.Is(err, ErrBusy) {
		return err
	}
	empty, failed := isEmpty(ctx, run, name)
	if failed != nil || !empty {
		return errors.Join(err, failed)
	}
	if err := Remove(ctx, run, name); err != nil {
		return err
	}
	return create()
}

// isEmpty reports whether a mapping is one that Make has begun, that has no table, neither a live
// one nor an inactive one, and that nobody has open.
func isEmpty(ctx context.Context, run exec.Interface, name string) (bool, error) {
	out, err := run.CommandContext(ctx, "dmsetup", "info", "--columns", "--noheadings", "--separator", ",", "-o", "uuid,tables_loaded,open", name).Output()
	return strings.TrimSpace(string(out)) == blockUUID+name+",None,0", err
}

// Resize makes a mapping as large as size, while it is in use. Killed in between, it leaves the
// mapping as it was.
func Resize(ctx context.Context, run exec.Interface, name string, device uint64, size volume.Bytes) error {
	if err := dmsetup(ctx, run, "load", name, "--table", table(device, size)); err != nil {
		return err
	}
	return dmsetup(ctx, run, "resume", name)
}

// Remove takes a mapping away. The error is ErrBusy if somebody has it open: it is never
// forced.
func Remove(ctx context.Context, run exec.Interface, name string) error {
	return dmsetup(ctx, run, "remove", name)
}

func table(device uint64, size volume.Bytes) string {
	return fmt.Sprintf("0 %d linear %d:%d 0", int64(size.RoundUp(volume.Block)/sector), unix.Major(device), unix.Minor(device))
}

// dmsetup leaves the node in /dev to udev, and sees to it where no udev is.
func dmsetup(ctx context.Context, run exec.Interface, args ...string) error {
	_, err := run.CommandContext(ctx, "dmsetup", append(args, "--verifyudev")...).Output()
	var exit exec.ExitError
	if errors.As(err, &exit) && strings.Contains(err.Error(), "Device or resource busy") {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}
