package volume

import (
	"slices"
	"strings"
)

// A MountOption is one of the mount options that a volume may have. Each is a flag of one
// mount. What concerns the file system is not among them, because several mounts of a
// volume share it, and the first would decide for all.
type MountOption string

// The mount options.
const (
	NoAtime     MountOption = "noatime"
	Relatime    MountOption = "relatime" // what the kernel does by itself
	StrictAtime MountOption = "strictatime"
	NoDirAtime  MountOption = "nodiratime"
	NoDev       MountOption = "nodev" // every volume is
	NoExec      MountOption = "noexec"
	NoSUID      MountOption = "nosuid"
)

var mountOptions = []MountOption{NoAtime, Relatime, StrictAtime, NoDirAtime, NoDev, NoExec, NoSUID}

// writable is a mount option that changes nothing and is not returned: what is not to be
// written is mounted read-only by a pod's readOnly, whatever the option.
const writable = "rw"

// ParseMountOptions parses the mount options of a PersistentVolume or a StorageClass. The
// error is a *FieldError about field.
func ParseMountOptions(field string, given []string) ([]MountOption, error) {
	var out []MountOption
	var atime MountOption
	for _, text := range given {
		o := MountOption(text)
		switch {
		case text == writable:
			continue
		case !slices.Contains(mountOptions, o):
			return nil, invalid(field, text, "is not a mount option that a volume may have; they are %s", mountOptionNames())
		case slices.Contains(out, o):
			continue
		}
		if o == NoAtime || o == Relatime || o == StrictAtime {
			if atime != "" {
				return nil, invalid(field, text, "contradicts %s; name one of them", atime)
			}
			atime = o
		}
		out = append(out, o)
	}
	return out, nil
}

func mountOptionNames() string {
	names := make([]string, len(mountOptions))
	for i, o := range mountOptions {
		names[i] = string(o)
	}
	return strings.Join(append(names, writable), ", ")
}
