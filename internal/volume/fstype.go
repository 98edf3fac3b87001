package volume

// FSType is the kind of file system that a volume is made with. The zero value is XFS.
type FSType string

// The kinds of file systems.
const (
	XFS  FSType = ""
	Ext4 FSType = "ext4"
)

const nameOfXFS = "xfs"

// String returns the name by which the kernel, and fsType everywhere, call it.
func (f FSType) String() string {
	if f == XFS {
		return nameOfXFS
	}
	return string(f)
}

// ParseFSType parses the name of a kind of file system; empty means XFS. The error is a
// *FieldError.
func ParseFSType(field, s string) (FSType, error) {
	switch s {
	case "", nameOfXFS:
		return XFS, nil
	case string(Ext4):
		return Ext4, nil
	}
	return "", invalid(field, s, "is not a file system that flexlvm makes; it is xfs or ext4")
}

// CheckFSType refuses a PersistentVolume whose own fsType, which the kubelet passes on and
// which may be empty, says something else than its options. The error is a *FieldError about
// field.
func (s Spec) CheckFSType(field, given string) error {
	if given == "" {
		return nil
	}
	if f, err := ParseFSType(field, given); err != nil || f == s.FSType {
		return err
	}
	return invalid(field, given, "is not what the options of the PersistentVolume say: %s is %s; let both say the same", OptionFSType, s.FSType)
}

// validateFSType refuses what a volume with another file system than XFS cannot be.
func (s Spec) validateFSType() error {
	switch {
	case s.FSType == XFS:
		return nil
	case s.Kind == Dataset:
		return invalid(OptionFSType, s.FSType.String(), "does not belong to kind %s, whose replicas are made with %s; remove it", Dataset, XFS)
	case s.Inodes > ext4Inodes(s.Size):
		return invalid(OptionInodes, number(s.Inodes), "is more than %d, which is what ext4 has for this size: one for every %s, whatever its files need; leave it out, ask for more room, or use %s", ext4Inodes(s.Size), Ext4InodeRatio, XFS)
	}
	return nil
}
