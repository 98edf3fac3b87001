package volume

import (
	"errors"
	"strings"
)

// Spec is what a caller requests from the node: which volume, how large, and on whose behalf. The
// zero value is not valid.
type Spec struct {
	Group     Group
	GroupUUID string // as LVM prints it; empty: any group of that name
	Name      Name
	Size      Bytes // what the user may write
	Layout    Layout
	Stripes   int  // striped: number of devices; 0 means DefaultStripes
	StripeKiB int  // striped: KiB on one device before the next; 0 means DefaultStripeKiB
	Mirrors   int  // raid1: copies besides the first; 0 means DefaultMirrors
	ThinPool  Name // thin: the pool that holds it
	// DirectoryPool is the pool that holds a directory volume.
	DirectoryPool Name
	// CloneOf is the volume that this one starts as a copy of, or empty: in the same pool if this
	// one is thin, otherwise in the same group.
	CloneOf Name
	// Reserve applies to copy-on-write snapshots.
	Reserve Reserve
	// Ratio is how far the thin pool may be overcommitted. Only the provisioner uses it,
	// and it is not an option: it makes no difference to the volume on the node.
	Ratio    Ratio
	Inodes   int64 // hard limit on inodes; 0 means none
	FSType   FSType
	Kind     Kind
	ReadOnly bool // for the readers of a replica: mounted where it exists, never created
	// Versions: readers get the current version that the replica holds, instead of its root.
	// Drivers that do not know versions refuse the option.
	Versions bool
	// Encrypted: the volume's content is in a LUKS2 container, whose key comes with each mount.
	Encrypted bool
	// FS is the UUID of the file system that the volume already has: the volume is never formatted,
	// and another file system is refused. Empty: the volume may be formatted.
	FS      string
	Cluster string // UID of the cluster's kube-system namespace, or empty
	// OwnerNamespace owns the dataset that is offered to readers of another namespace.
	OwnerNamespace string
	Namespace      string // the namespace that owns the volume; empty if the caller does not know it
}

// MaxInodes keeps the arithmetic on inodes far from overflow; 2^40 inodes alone
// would need 512 TiB.
const MaxInodes = 1 << 40

// ParseInodes parses a limit on inodes. The error is a *FieldError.
func ParseInodes(field, s string) (int64, error) { return parseCount(field, s, MaxInodes) }

// ParseReadOnly parses whether a volume is read-only. The error is a *FieldError.
func ParseReadOnly(field, s string) (bool, error) { return ParseBool(field, s) }

// ParseEncrypted parses whether a volume is encrypted. The error is a *FieldError.
func ParseEncrypted(field, s string) (bool, error) { return ParseBool(field, s) }

// ParseBool parses true or false. The error is a *FieldError.
func ParseBool(field, s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, invalid(field, s, "is neither true nor false")
}

// ParseGroupUUID checks an LVM UUID: 32 letters and digits in the groups
// 6-4-4-4-4-4-6. The error is a *FieldError.
func ParseGroupUUID(field, s string) (string, error) {
	if !lvmUUID(s) {
		return "", invalid(field, s, "is not an LVM UUID; copy it from `vgs -o vg_uuid`")
	}
	return s, nil
}

func lvmUUID(s string) bool {
	parts := strings.Split(s, "-")
	want := []int{6, 4, 4, 4, 4, 4, 6}
	if len(parts) != len(want) {
		return false
	}
	for i, p := range parts {
		if len(p) != want[i] || strings.IndexFunc(p, notAlphanumeric) >= 0 {
			return false
		}
	}
	return true
}

func notAlphanumeric(c rune) bool {
	alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	return !alphanumeric
}

// ParseFS checks the UUID of a file system, in its canonical form. The error is a
// *FieldError.
func ParseFS(field, s string) (string, error) {
	if !fsUUID(s) {
		return "", invalid(field, s, "is not the UUID of a file system: 8-4-4-4-12 lower-case hexadecimal digits")
	}
	return s, nil
}

// ParseCluster checks the UID of a cluster. Where the UID is optional, the caller handles
// the empty string. The error is a *FieldError.
func ParseCluster(field, s string) (string, error) {
	if s == "" || len(s) > 64 || strings.IndexFunc(s, func(c rune) bool { return notAlphanumeric(c) && c != '-' }) >= 0 {
		return "", invalid(field, s, "is not a UID; give the UID of the kube-system namespace")
	}
	return s, nil
}

// dnsLabel reports whether s is an RFC 1123 label, as a namespace's name must be.
func dnsLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range s {
		if c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// ParseNamespace checks the name of a Kubernetes namespace. The error is a
// *FieldError.
func ParseNamespace(field, s string) (string, error) {
	if !dnsLabel(s) {
		return "", invalid(field, s, "is not the name of a namespace")
	}
	return s, nil
}

// Validate checks the fields against each other. It trusts fields that the Parse functions of this
// package returned.
func (s Spec) Validate() error {
	switch {
	case s.Group == "":
		return invalid(OptionGroup, "", "is required")
	case s.Name == "":
		return invalid(OptionVolume, "", "is required")
	case s.Size <= 0:
		return invalid(OptionSize, "", "is required")
	case s.ReadOnly && s.Kind != Dataset:
		return invalid(OptionReadOnly, "true", "belongs to kind %s, and the kind is %s; remove it, and let pods ask for readOnly", Dataset, s.Kind)
	case s.Kind == Snapshot && s.CloneOf == "":
		return invalid(OptionCloneOf, "", "is required with kind %s: name the volume that it is taken of", Snapshot)
	case s.Versions && !s.ReadOnly:
		return invalid(OptionVersions, "true", "belongs to %s true, as only readers get a version; remove it", OptionReadOnly)
	case s.OwnerNamespace != "" && !s.ReadOnly:
		return invalid(OptionOwner, s.OwnerNamespace, "belongs to %s true, as only a dataset can be offered to another namespace; remove it", OptionReadOnly)
	case s.Encrypted && s.Kind == Dataset:
		return invalid(OptionEncrypted, "true", "does not belong to kind %s, whose readers have no key; remove it", Dataset)
	}
	if err := errors.Join(s.validateFSType(), s.validateReserve()); err != nil {
		return err
	}
	if err := s.validateLayout(); err != nil {
		return err
	}
	return checkDeviceName(OptionVolume, s.Group, s.Name, s.Layout)
}

// Pool returns the pool that the volume is allocated from.
func (s Spec) Pool() PoolName {
	return Shape{ThinPool: s.ThinPool, DirectoryPool: s.DirectoryPool}.Pool(s.Group)
}
