// Package diskid compares the persistent names of disks: a device's identity, with "-partN" for a
// partition, or "fs-UUID" of a file system, with ":/DIRECTORY" for a part of it. It does no I/O,
// and is built for every platform that the kubectl plugin runs on.
package diskid

import (
	"regexp"
	"slices"
	"strings"
)

// maxAliases bounds the bytes of Names.JoinAliases.
const maxAliases = 1024

// Names are the names of one disk or file system.
type Names struct {
	ID string
	// Aliases are IDs under which the same data may be found elsewhere: of the devices that it is on, or of the file
	// system on a device.
	Aliases []string
}

// ParseNames is the reverse of JoinAliases.
func ParseNames(id, aliases string) Names {
	n := Names{ID: id}
	if aliases != "" {
		n.Aliases = strings.Split(aliases, ",")
	}
	return n
}

// JoinAliases returns the aliases as an annotation has them, separated by commas. It leaves out those that contain a
// comma, as only the names of mappings and of loop devices' files can, and those for which there is no room.
func (n Names) JoinAliases() string {
	out := ""
	for _, a := range n.Aliases {
		if strings.Contains(a, ",") || len(out)+1+len(a) > maxAliases {
			continue
		}
		if out != "" {
			out += ","
		}
		out += a
	}
	return out
}

// Overlap reports whether data of one may be found under the other's ID. Aliases are compared with one another only if
// one ID is local: all file systems on a disk, and all directories of each, have the disk's ID as an alias.
func (n Names) Overlap(other Names) bool {
	return Overlap(n.ID, other.ID) || n.aliasOverlaps(other.ID) || other.aliasOverlaps(n.ID) || n.localOverlaps(other)
}

// localPrefixes begin the IDs that are only names, and do not say which disk it is: those of loop devices have the path of
// a file, and those of mappings without a header of cryptsetup's the name of the mapping.
var localPrefixes = []string{"loop-", "dm-CRYPT-PLAIN-", "dm-CRYPT-LOOPAES-", "dm-CRYPT-TCRYPT-", "dm-CRYPT-INTEGRITY-"}

// IsLocal reports whether an ID is only a name, which another machine may use as well, and another disk after a boot.
func IsLocal(id string) bool {
	return slices.ContainsFunc(localPrefixes, func(prefix string) bool { return strings.HasPrefix(id, prefix) })
}

// OverlapElsewhere is Overlap for disks of two machines. It ignores local IDs.
func (n Names) OverlapElsewhere(other Names) bool {
	return n.withoutLocal().Overlap(other.withoutLocal()) || n.localOverlaps(other)
}

func (n Names) withoutLocal() Names {
	if IsLocal(n.ID) {
		n.ID = ""
	}
	n.Aliases = slices.DeleteFunc(slices.Clone(n.Aliases), IsLocal)
	return n
}

// localOverlaps reports whether one of the IDs is local, and both are on the same devices. Without mappings, that is known
// only of a single disk, because the partitions of a RAID are on the same disks, too.
func (n Names) localOverlaps(other Names) bool {
	if !IsLocal(n.ID) && !IsLocal(other.ID) {
		return false
	}
	a, b := n.devices(), other.devices()
	if slices.ContainsFunc(a, isMapping) || slices.ContainsFunc(b, isMapping) {
		return sameDevices(a, b)
	}
	return len(a) == 1 && slices.Equal(a, b)
}

// Exchanged reports whether another disk has got the local ID of n: now is not on the devices that n was on, if those are
// known.
func (n Names) Exchanged(now Names) bool {
	was := n.devices()
	return n.ID == now.ID && IsLocal(n.ID) && len(was) > 0 && !sameDevices(was, now.devices())
}

// devices returns the aliases that are IDs of devices, and not local. A multipath device is left out, because its disks
// are among them, and multipathd may begin to use them at any time.
func (n Names) devices() []string {
	return slices.DeleteFunc(slices.Clone(n.Aliases), func(id string) bool {
		return IsLocal(id) || strings.HasPrefix(id, "fs-") || strings.HasPrefix(id, "dm-mpath-")
	})
}

// isMapping reports whether an ID is that of a device-mapper device.
func isMapping(id string) bool { return strings.HasPrefix(id, "dm-") }

// sameDevices reports whether these are the IDs of the same devices, although some of them may have been added or replaced:
// a disk of a RAID, or a mapping below a logical volume that has a snapshot. Several logical volumes are on the same disks,
// so if there are mappings, those are compared.
func sameDevices(a, b []string) bool {
	isDisk := func(id string) bool { return !isMapping(id) }
	mappings, others := slices.DeleteFunc(slices.Clone(a), isDisk), slices.DeleteFunc(slices.Clone(b), isDisk)
	if len(mappings) == 0 && len(others) == 0 {
		return slices.ContainsFunc(a, func(id string) bool { return slices.Contains(b, id) })
	}
	return len(mappings) > 0 && len(others) > 0 && (containsAll(mappings, others) || containsAll(others, mappings))
}

func containsAll(all, some []string) bool {
	return !slices.ContainsFunc(some, func(id string) bool { return !slices.Contains(all, id) })
}

func (n Names) aliasOverlaps(id string) bool {
	return slices.ContainsFunc(n.Aliases, func(alias string) bool { return Overlap(alias, id) })
}

// Overlap reports whether two disks, as annotations and ledgers name them, are the same, or one is a part
// of the other.
func Overlap(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	if a == b || PartitionOf(a, b) || PartitionOf(b, a) {
		return true
	}
	one, oneRoot, oneIs := parseFilesystem(a)
	other, otherRoot, otherIs := parseFilesystem(b)
	return oneIs && otherIs && one == other && (Within(oneRoot, otherRoot) || Within(otherRoot, oneRoot))
}

// PartitionOf reports whether one disk is a partition of another.
func PartitionOf(part, whole string) bool {
	number, there := strings.CutPrefix(part, whole+"-part")
	return there && whole != "" && number != "" && strings.Trim(number, "0123456789") == ""
}

// SamePartitioned reports whether two IDs are of partitions of the same disk.
func SamePartitioned(a, b string) bool {
	end := strings.LastIndex(a, "-part")
	return end > 0 && PartitionOf(a, a[:end]) && PartitionOf(b, a[:end])
}

// commonIDs match the IDs of disks whose serial numbers are the same on every machine: Google's disks on NVMe, whose
// serial numbers begin with nvme_card, and QEMU's default on SATA.
var commonIDs = regexp.MustCompile(`^(nvme\.1ae0-6e766d655f63617264|t10\.ATA_QEMU_HARDDISK_QM[0-9]{5}(-part[0-9]+)?$)`)

// mappedPartitions match the IDs of partitions that kpartx has mapped, of multipath disks and others.
var mappedPartitions = regexp.MustCompile(`^dm-part[0-9]+-`)

// IsMappedPartition reports whether a device is a partition that kpartx has mapped. The kernel does not know where on its
// disk it begins.
func IsMappedPartition(id string) bool { return mappedPartitions.MatchString(id) }

// Common reports whether disks of other machines are known to have the same ID.
func Common(id string) bool { return commonIDs.MatchString(id) }

// parseFilesystem splits the name of a file system, or of a directory of one.
func parseFilesystem(disk string) (uuid, root string, is bool) {
	rest, is := strings.CutPrefix(disk, "fs-")
	uuid, root, part := strings.Cut(rest, ":")
	if !part {
		root = "/"
	}
	return uuid, root, is
}

// OfFilesystem returns the name of a file system, from its UUID, or of its directory root, from
// both.
func OfFilesystem(uuid, root string) string {
	if root == "/" {
		return "fs-" + uuid
	}
	return "fs-" + uuid + ":" + root
}

// Within reports whether a path equals another, or is below it.
func Within(path, above string) bool {
	return path == above || strings.HasPrefix(path, strings.TrimSuffix(above, "/")+"/")
}
