package volume

// FSType is the kind of file system that a volume is formatted with, or Raw. The zero value is XFS.
type FSType string

// The kinds of file systems.
const (
	XFS  FSType = ""
	Ext4 FSType = "ext4"
	// Raw means no file system: pods get the device itself (volumeMode Block). ParseFSType does not
	// accept it.
	Raw FSType = "block"
)

const nameOfXFS = "xfs"

// String returns the name that the kernel and every fsType field use.
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

// parseContent is ParseFSType for a volume's tag, which may also be Raw.
func parseContent(field, s string) (FSType, error) {
	if s == string(Raw) {
		return Raw, nil
	}
	return ParseFSType(field, s)
}

// The modes of volumes, as Kubernetes calls them.
const (
	ModeFilesystem = "Filesystem"
	ModeBlock      = "Block"
)

// VolumeMode returns the mode of a volume with such content.
func (f FSType) VolumeMode() string {
	if f == Raw {
		return ModeBlock
	}
	return ModeFilesystem
}

// parseVolumeMode parses OptionVolumeMode into s, whose OptionFSType is already parsed.
func parseVolumeMode(s *Spec, field, text string) error {
	switch {
	case text == ModeFilesystem:
		return nil
	case text != ModeBlock:
		return invalid(field, text, "is not the mode of a volume; it is %s or %s", ModeFilesystem, ModeBlock)
	case s.FSType != XFS:
		return invalid(OptionFSType, s.FSType.String(), "does not belong to %s %s, which has no file system; remove it", OptionVolumeMode, ModeBlock)
	}
	s.FSType = Raw
	return nil
}

// onlyFSType returns the text of OptionFSType: empty for XFS, the default, and for Raw, which
// OptionVolumeMode expresses.
func onlyFSType(f FSType) string {
	if f == Raw {
		return ""
	}
	return string(f)
}

// CheckFSType rejects a PersistentVolume whose own fsType, which the kubelet passes on and which
// may be empty, contradicts its options. The error is a *FieldError about field.
func (s Spec) CheckFSType(field, given string) error {
	switch {
	case given == "":
		return nil
	case s.FSType == Raw:
		return invalid(field, given, "does not belong to %s %s, which has no file system; remove it", OptionVolumeMode, ModeBlock)
	}
	if f, err := ParseFSType(field, given); err != nil || f == s.FSType {
		return err
	}
	return invalid(field, given, "is not what the options of the PersistentVolume say: %s is %s; let both say the same", OptionFSType, s.FSType)
}

// validateFSType rejects options that a volume with a file system other than XFS cannot have.
func (s Spec) validateFSType() error {
	switch {
	case s.FSType == XFS:
		return nil
	case s.FSType == Raw:
		return s.validateBlock()
	case s.Kind == Dataset:
		return invalid(OptionFSType, s.FSType.String(), "does not belong to kind %s, whose replicas are made with %s; remove it", Dataset, XFS)
	case s.Inodes > ext4Inodes(s.Size):
		return invalid(OptionInodes, number(s.Inodes), "is more than %d, which is what ext4 has for this size: one for every %s, whatever its files need; leave it out, ask for more room, or use %s", ext4Inodes(s.Size), Ext4InodeRatio, XFS)
	}
	return nil
}

// validateBlock rejects options that a volume without a file system cannot have.
func (s Spec) validateBlock() error {
	switch {
	case s.Kind == Dataset:
		return invalid(OptionVolumeMode, ModeBlock, "does not belong to kind %s, whose replicas are files; use %s %s", Dataset, OptionVolumeMode, ModeFilesystem)
	case s.Inodes > 0:
		return invalid(OptionInodes, number(s.Inodes), "does not belong to %s %s, which has no file system; use a class without it", OptionVolumeMode, ModeBlock)
	}
	return nil
}
