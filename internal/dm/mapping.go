// Package dm identifies the devices that flexlvm creates on logical volumes, and creates those of
// raw block volumes with dmsetup. cryptsetup creates the others (package luks).
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
	// blockCryptPrefix begins with blockPrefix, so that the LVM filters that exclude blockPrefix exclude this
	// mapping, too: pods write the content of both.
	blockCryptPrefix = blockPrefix + "crypt-"
	// cryptUUID begins the device-mapper UUID of a mapping that cryptsetup opens; the container's
	// UUID without its hyphens and the mapping's name follow.
	cryptUUID = "CRYPT-LUKS2-"
	// blockUUID begins the UUID of a mapping that Make creates; the mapping's name follows.
	blockUUID = "FLEXLVM-"
	mapperDir = "/dev/mapper/"
)

// Sys is where sysfs is mounted.
const Sys = "/sys"

// CryptName returns the name of the mapping of an encrypted logical volume. It is derived from the
// volume's LVM UUID, so that a renamed volume keeps it, and a copy has another.
func CryptName(volumeUUID string) string { return cryptPrefix + plain(volumeUUID) }

// BlockName is CryptName for a raw block volume: the name of the device that pods see.
func BlockName(volumeUUID string) string { return blockPrefix + plain(volumeUUID) }

// BlockCryptName is CryptName for a container with a raw block volume: it is below the mapping that
// BlockName names.
func BlockCryptName(volumeUUID string) string { return blockCryptPrefix + plain(volumeUUID) }

// IsBlockName reports whether a name is one that BlockName or BlockCryptName returns.
func IsBlockName(name string) bool { return strings.HasPrefix(name, blockPrefix) }

func plain(uuid string) string { return strings.ReplaceAll(uuid, "-", "") }

// A Mapping is the device of an open container, or of a published raw block volume, as the kernel
// shows it.
type Mapping struct {
	Name   string
	Path   string // /dev/mapper/…
	Number uint64 // as in stat's st_rdev
	UUID   string // of the container; empty for the device of a raw block volume
	Device uint64 // the number of the device that it is on; 0 with ErrOnNothing
}

// Errors that callers may test for with errors.Is.
var (
	// ErrNoMapping: the device is not one of flexlvm's mappings, or does not exist.
	ErrNoMapping = errors.New("no such mapping")
	// ErrOnNothing: the mapping is on no device, because the program that created it was killed before it loaded
	// the table, or because somebody has replaced the table.
	ErrOnNothing = errors.New("is on no device; expected one")
)

// ByNumber returns the mapping with a device number. The error is ErrNoMapping if the device is not
// flexlvm's, or is gone. sys is Sys.
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
		return Mapping{}, fmt.Errorf("find the mapping on the device: %w", err)
	}
	for _, entry := range above {
		m, err := inDir(filepath.Join(dir, entry.Name()))
		if !errors.Is(err, ErrNoMapping) {
			return m, err
		}
	}
	return Mapping{}, ErrNoMapping
}

// Mappings returns all mappings of this host, also those that are on nothing (ErrOnNothing). The error is
// about mappings that cannot be read; the others are returned with it.
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
		if err != nil && !errors.Is(err, ErrOnNothing) {
			failed = errors.Join(failed, err)
			continue
		}
		all = append(all, m)
	}
	return all, failed
}

// Size returns the size of a device.
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
		return Mapping{}, fmt.Errorf("find the devices below mapping %s: %w", name, err)
	}
	m := Mapping{Name: name, Path: mapperDir + name, Number: number, UUID: container}
	if len(below) == 0 {
		return m, fmt.Errorf("mapping %s %w; a cryptsetup or dmsetup command was interrupted: run `dmsetup remove %s`", name, ErrOnNothing, name)
	}
	if len(below) > 1 {
		return Mapping{}, fmt.Errorf("mapping %s is on %d devices; expected one; check it with `dmsetup table %s`", name, len(below), name)
	}
	if m.Device, err = readNumber(filepath.Join(dir, "slaves", below[0].Name())); err != nil {
		return Mapping{}, fmt.Errorf("find the devices below mapping %s: %w", name, err)
	}
	return m, nil
}

// gone reports whether an error of sysfs means that the device is gone, or is just being removed.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV)
}

// splitUUID extracts the container's UUID from device-mapper's, and restores its hyphens.
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
