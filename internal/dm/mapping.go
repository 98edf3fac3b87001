// Package dm knows the devices that flexlvm puts on logical volumes, and makes those of raw
// block volumes with dmsetup. cryptsetup makes the others (package luks).
package dm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	cryptPrefix = "flexlvm-crypt-"
	blockPrefix = "flexlvm-block-"
	// It begins like the other, as filters of LVM's go by that: either shows what a pod writes.
	blockCryptPrefix = blockPrefix + "crypt-"
	// cryptUUID begins device-mapper's UUID of what cryptsetup opens; the container's UUID
	// without its hyphens and the mapping's name follow.
	cryptUUID = "CRYPT-LUKS2-"
	// blockUUID begins that of what Make makes; the mapping's name follows.
	blockUUID = "FLEXLVM-"
	mapperDir = "/dev/mapper/"
)

// Sys is where sysfs is mounted.
const Sys = "/sys"

// CryptName returns the name of the mapping of an encrypted logical volume. It goes by the
// volume's LVM UUID, so that a volume that is renamed keeps it, and a copy has another.
func CryptName(volumeUUID string) string { return cryptPrefix + plain(volumeUUID) }

// BlockName is CryptName of a raw block volume: of the device that pods see.
func BlockName(volumeUUID string) string { return blockPrefix + plain(volumeUUID) }

// BlockCryptName is CryptName where the container holds a raw block volume: the mapping that
// BlockName names lies on it.
func BlockCryptName(volumeUUID string) string { return blockCryptPrefix + plain(volumeUUID) }

// IsBlockName reports whether a name is one that BlockName or BlockCryptName returns.
func IsBlockName(name string) bool { return strings.HasPrefix(name, blockPrefix) }

func plain(uuid string) string { return strings.ReplaceAll(uuid, "-", "") }

// A Mapping is the device of an open container, or of a raw block volume that is handed out,
// as the kernel shows it.
type Mapping struct {
	Name   string
	Path   string // /dev/mapper/…
	Number uint64 // as in stat's st_rdev
	UUID   string // of the container; empty for the device of a raw block volume
	Device uint64 // the number of the device that it is on
}

// ErrNoMapping: the device is none of flexlvm's mappings, or does not exist.
var ErrNoMapping = errors.New("no such mapping")

// ByNumber returns the mapping that a device is. The error is ErrNoMapping if the device is
// another, or is gone. sys is Sys.
func ByNumber(sys string, number uint64) (Mapping, error) {
	return read(blockDir(sys, number), number)
}

// On returns flexlvm's mapping on a device. The error is ErrNoMapping if there is none. Other holders of
// the device are ignored.
func On(sys string, device uint64) (Mapping, error) {
	dir := filepath.Join(blockDir(sys, device), "holders")
	above, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return Mapping{}, ErrNoMapping
	}
	if err != nil {
		return Mapping{}, fmt.Errorf("see what stands on the device: %w", err)
	}
	for _, entry := range above {
		m, err := inDir(filepath.Join(dir, entry.Name()))
		if !errors.Is(err, ErrNoMapping) {
			return m, err
		}
	}
	return Mapping{}, ErrNoMapping
}

// Mappings returns all of this host. The error is about those that cannot be read, and comes
// beside the others.
func Mappings(sys string) ([]Mapping, error) {
	dir := filepath.Join(sys, "block")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list block devices: %w", err)
	}
	var all []Mapping
	var failed error
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), "dm-") {
			continue
		}
		m, err := inDir(filepath.Join(dir, entry.Name()))
		if errors.Is(err, ErrNoMapping) {
			continue
		}
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		all = append(all, m)
	}
	return all, failed
}

// Size returns how large a device is.
func Size(sys string, number uint64) (volume.Bytes, error) {
	text, err := readLine(filepath.Join(blockDir(sys, number), "size"))
	if err != nil {
		return 0, fmt.Errorf("read the size of a device: %w", err)
	}
	sectors, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the size of a device: %w", err)
	}
	return volume.Bytes(sectors) * sector, nil
}

// inDir reads the mapping of a directory of sysfs.
func inDir(dir string) (Mapping, error) {
	number, err := readNumber(dir)
	if gone(err) {
		return Mapping{}, ErrNoMapping
	}
	if err != nil {
		return Mapping{}, err
	}
	return read(dir, number)
}

func read(dir string, number uint64) (Mapping, error) {
	name, err := readLine(filepath.Join(dir, "dm/name"))
	if err == nil && !isName(name) || gone(err) {
		return Mapping{}, ErrNoMapping
	}
	if err != nil {
		return Mapping{}, fmt.Errorf("identify mapping: %w", err)
	}
	uuid, err := readLine(filepath.Join(dir, "dm/uuid"))
	if gone(err) {
		return Mapping{}, ErrNoMapping
	}
	if err != nil {
		return Mapping{}, fmt.Errorf("identify mapping %s: %w", name, err)
	}
	container, ok := splitUUID(uuid, name)
	if !ok {
		return Mapping{}, ErrNoMapping
	}
	below, err := os.ReadDir(filepath.Join(dir, "slaves"))
	if gone(err) {
		return Mapping{}, ErrNoMapping
	}
	if err != nil {
		return Mapping{}, fmt.Errorf("see what mapping %s stands on: %w", name, err)
	}
	if len(below) != 1 {
		return Mapping{}, fmt.Errorf("mapping %s stands on %d devices and should on one; a command of cryptsetup's or dmsetup's was cut short: run `dmsetup remove %s`", name, len(below), name)
	}
	device, err := readNumber(filepath.Join(dir, "slaves", below[0].Name()))
	if err != nil {
		return Mapping{}, fmt.Errorf("see what mapping %s stands on: %w", name, err)
	}
	return Mapping{Name: name, Path: mapperDir + name, Number: number, UUID: container, Device: device}, nil
}

// gone reports whether sysfs has failed to tell of a device because that is no more, or is
// just being removed.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV)
}

// splitUUID takes the container's UUID out of device-mapper's, and puts its hyphens back.
func splitUUID(uuid, name string) (container string, ok bool) {
	if strings.HasPrefix(name, blockPrefix) && !strings.HasPrefix(name, blockCryptPrefix) {
		return "", uuid == blockUUID+name
	}
	s, ok := strings.CutPrefix(uuid, cryptUUID)
	s, named := strings.CutSuffix(s, "-"+name)
	if !ok || !named || len(s) != 32 {
		return "", false
	}
	return strings.Join([]string{s[:8], s[8:12], s[12:16], s[16:20], s[20:]}, "-"), true
}

func isName(name string) bool {
	return strings.HasPrefix(name, cryptPrefix) || strings.HasPrefix(name, blockPrefix)
}

func blockDir(sys string, number uint64) string {
	return fmt.Sprintf("%s/dev/block/%d:%d", sys, unix.Major(number), unix.Minor(number))
}

func readNumber(dir string) (uint64, error) {
	text, err := readLine(filepath.Join(dir, "dev"))
	if err != nil {
		return 0, err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(text, "%d:%d", &major, &minor); err != nil {
		return 0, fmt.Errorf("read the number of %s: %w", dir, err)
	}
	return unix.Mkdev(major, minor), nil
}

func readLine(file string) (string, error) {
	b, err := os.ReadFile(file)
	return strings.TrimSpace(string(b)), err
}
