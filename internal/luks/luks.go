// Package luks formats, opens, grows and closes LUKS2 containers with the host's cryptsetup, and
// reads their headers. It decides nothing.
//
// A key goes to cryptsetup through its standard input, a file in memory (internal/command), and
// nowhere else: not into an argument, a file or an error.
package luks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Errors that callers may test for with errors.Is.
var (
	// ErrWrongKey: the key opens no slot of the container.
	ErrWrongKey = errors.New("wrong key")
	// ErrBusy: the mapping is open.
	ErrBusy = errors.New("in use")
)

const (
	// metadataSize is the size of each of the two copies of the header. ReadHeader expects the
	// second right behind the first.
	metadataSize = 16 << 10
	sector       = 512

	// The cost of deriving a key is low, because the host's programs share the node's memory with
	// the pods. The key in a Secret is random, so nobody guesses it, however cheap a guess is.
	pbkdfMemory     = 64 << 10 // KiB
	pbkdfIterations = 4        // the minimum for argon2id

	// Of the containers that are opened at the same time, as after a boot, only one derives its key
	// at a time. cryptsetup has this option for no other command, and a lock around the others
	// would be held while a disk hangs.
	oneAtATime = "--serialize-memory-hard-pbkdf"
)

// A Key is the content of a Secret. Printing a Key reveals nothing of it, not even in an unexported
// field, whose methods fmt does not call: a function is printed as a number.
type Key struct{ secret func() []byte }

// The limits on the length of a key. The minimum is the length of a random key of 256 bits.
const (
	MinKey = 32
	MaxKey = 4096
)

// NewKey checks the length of a key, and nothing else.
func NewKey(secret []byte) (Key, error) {
	if len(secret) < MinKey || len(secret) > MaxKey {
		return Key{}, fmt.Errorf("a key has %d to %d bytes, and this one has %d", MinKey, MaxKey, len(secret))
	}
	own := bytes.Clone(secret)
	return Key{func() []byte { return own }}, nil
}

// IsZero reports whether there is no key.
func (k Key) IsZero() bool { return k.secret == nil }

// Format implements fmt.Formatter, for every verb.
func (Key) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte("(a key)")) }

// MarshalText keeps a key out of JSON, and of logs that are JSON.
func (Key) MarshalText() ([]byte, error) { return []byte("(a key)"), nil }

// Format creates a container on device, with a header of volume.LUKSHeader bytes and a random UUID.
// The caller must be sure that the volume is in state creating: the content of the device is lost.
//
// The volume's UUID must be set afterwards, as the last step: killed at any instant, Format leaves
// no header, or one with a UUID that is recorded nowhere.
func Format(ctx context.Context, run exec.Interface, device string, key Key) error {
	if err := cryptsetup(ctx, run, key, formatArgs(device)...); err != nil {
		return fmt.Errorf("encrypt %s: %w", device, err)
	}
	return nil
}

// formatArgs fixes everything that another release of cryptsetup might choose differently.
func formatArgs(device string) []string {
	return []string{
		"luksFormat", "--batch-mode", "--type=luks2",
		"--cipher=aes-xts-plain64", "--key-size=512", "--hash=sha256",
		"--pbkdf=argon2id", "--pbkdf-force-iterations=" + strconv.Itoa(pbkdfIterations),
		"--pbkdf-memory=" + strconv.Itoa(pbkdfMemory), "--pbkdf-parallel=1",
		// Programs that write past the page cache see the same sectors as on an unencrypted volume.
		"--sector-size=" + strconv.Itoa(sector),
		"--offset=" + strconv.FormatInt(int64(volume.LUKSHeader)/sector, 10),
		"--luks2-metadata-size=" + strconv.Itoa(metadataSize),
		"--luks2-keyslots-size=" + strconv.FormatInt(int64(volume.LUKSHeader)-2*metadataSize, 10),
		"--key-file=-", "--", device,
	}
}

// SetUUID changes the UUID of a container that is not open.
func SetUUID(ctx context.Context, run exec.Interface, device, uuid string) error {
	if err := cryptsetup(ctx, run, Key{}, "luksUUID", "--batch-mode", "--uuid="+uuid, "--", device); err != nil {
		return fmt.Errorf("give the encrypted volume on %s a UUID: %w", device, err)
	}
	return nil
}

// CheckKey fails with ErrWrongKey if the key does not open the container on device.
func CheckKey(ctx context.Context, run exec.Interface, device string, key Key) error {
	if err := cryptsetup(ctx, run, key, "open", "--batch-mode", "--type=luks2", oneAtATime, "--test-passphrase", "--key-file=-", "--", device); err != nil {
		return fmt.Errorf("check the key of %s: %w", device, err)
	}
	return nil
}

// Open opens the container on device, as /dev/mapper/NAME. The volume key goes only into the
// kernel's keyring, so that device-mapper does not reveal it.
//
// Discards are not passed on: they would reveal to a reader of the disk which blocks are free.
func Open(ctx context.Context, run exec.Interface, device, name string, key Key) error {
	if err := cryptsetup(ctx, run, key, "open", "--batch-mode", "--type=luks2", oneAtATime, "--key-file=-", "--", device, name); err != nil {
		return fmt.Errorf("open the encrypted volume on %s: %w", device, err)
	}
	return nil
}

// Resize grows a mapping to the present size of its device. It needs the key again, because the
// kernel does not return it.
func Resize(ctx context.Context, run exec.Interface, name string, key Key) error {
	if err := cryptsetup(ctx, run, key, "resize", "--batch-mode", "--key-file=-", "--", name); err != nil {
		return fmt.Errorf("grow the encrypted volume %s: %w", name, err)
	}
	return nil
}

// Close removes a mapping, and the kernel's volume key with it. The error is ErrBusy if the mapping
// is in use: it is never forced.
func Close(ctx context.Context, run exec.Interface, name string) error {
	if err := cryptsetup(ctx, run, Key{}, "close", "--", name); err != nil {
		return fmt.Errorf("close the encrypted volume %s: %w", name, err)
	}
	return nil
}

// Exit codes of cryptsetup (man 8 cryptsetup, RETURN CODES).
const (
	exitNoPermission = 2 // a wrong passphrase
	exitBusy         = 5
)

func cryptsetup(ctx context.Context, run exec.Interface, key Key, args ...string) error {
	c := run.CommandContext(ctx, "cryptsetup", args...)
	if !key.IsZero() {
		c.SetStdin(bytes.NewReader(key.secret()))
	}
	err := c.Run()
	var exit exec.ExitError
	if errors.As(err, &exit) {
		switch {
		case exit.ExitStatus() == exitNoPermission && !key.IsZero():
			return fmt.Errorf("%w: %w", ErrWrongKey, err)
		case exit.ExitStatus() == exitBusy:
			return fmt.Errorf("%w: %w", ErrBusy, err)
		}
	}
	return err
}
