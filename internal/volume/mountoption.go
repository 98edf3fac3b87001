package volume

import (
	"slices"
	"strings"
)

// A MountOption is a mount option that a volume may have. Each is a flag of a single mount. Options
// of the file system are excluded, because all mounts of a volume share it, and the first mount
// would decide for all.
type MountOption string

// The mount options.
const (
	NoAtime     MountOption = "noatime"
	Relatime    MountOption = "relatime" // the kernel's default
	StrictAtime MountOption = "strictatime"
	NoDirAtime  MountOption = "nodiratime"
	NoDev       MountOption = "nodev" // set on every volume anyway
	NoExec      MountOption = "noexec"
	NoSUID      MountOption = "nosuid"
)

var mountOptions = []MountOption{NoAtime, Relatime, StrictAtime, NoDirAtime, NoDev, NoExec, NoSUID}

// writable is a mount option that has no effect and is not returned: only a pod's readOnly decides
// whether a volume is mounted read-only.
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
