package volume

import "strings"

// Name is the name of a flexlvm volume within its group: the name of its PersistentVolume or of its
// dataset. It is safe as an LVM operand and as one component of a path. Only ParseName creates one
// from outside input.
type Name string

// Group is the name of a volume group. Only ParseGroup creates one from outside input.
type Group string

// DefaultGroup is the volume group of classes and commands that name none, and of the shipped
// StorageClass.
const DefaultGroup Group = "flexlvm"

// doomedPrefix marks a volume whose removal has committed. Names of PersistentVolumes cannot
// contain an underscore, so none can collide with it.
const doomedPrefix = "doomed_"

// maxName bounds a name so that with the doomed prefix, LVM's own suffixes for
// hidden sub-volumes and the doubled hyphens of a group's name the result stays
// inside device-mapper's 127 characters; checkDeviceName checks the exact length.
const maxName = 100

// LVM refuses names with these (lvm2, lib/metadata/lv_manip.c: apply_lvname_restrictions).
var (
	reservedPrefixes = []string{"snapshot", "pvmove"}
	reservedParts    = []string{
		"_cdata", "_cmeta", "_corig", "_cpool", "_cvol", "_wcorig", "_mimage", "_mlog",
		"_rimage", "_rmeta", "_tdata", "_tmeta", "_vdata", "_vorigin", "_pmspare", "_imeta", "_iorig",
	}
)

// ParseName checks the name of a flexlvm volume. The error is a *FieldError.
func ParseName(field, s string) (Name, error) {
	if err := checkName(field, s, maxName); err != nil {
		return "", err
	}
	if strings.HasPrefix(s, doomedPrefix) {
		return "", invalid(field, s, "begins with %q, which marks volumes that are being removed; choose another name", doomedPrefix)
	}
	for _, p := range reservedPrefixes {
		if strings.HasPrefix(s, p) {
			return "", invalid(field, s, "begins with %q, which LVM reserves; choose another name", p)
		}
	}
	for _, p := range reservedParts {
		if strings.Contains(s, p) {
			return "", invalid(field, s, "holds %q, which LVM reserves; choose another name", p)
		}
	}
	return Name(s), nil
}

// ParseGroup checks the name of a volume group. The error is a *FieldError.
func ParseGroup(field, s string) (Group, error) {
	if err := checkName(field, s, maxName); err != nil {
		return "", err
	}
	return Group(s), nil
}

// checkName applies the rules of LVM's man page, and ensures that the name is one harmless
// component of a path.
func checkName(field, s string, maxLen int) error {
	switch {
	case s == "":
		return invalid(field, "", "is empty; give a name")
	case len(s) > maxLen:
		return invalid(field, s, "has %d characters, the most is %d", len(s), maxLen)
	case s[0] == '-':
		return invalid(field, s, "begins with a hyphen, which LVM would take for an option")
	case s == "." || s == "..":
		return invalid(field, s, "is a directory reference, not a name")
	}
	for _, c := range s {
		if !nameRune(c) {
			return invalid(field, s, "holds %q; a name is made of letters, digits and _ . + -", c)
		}
	}
	return nil
}

func nameRune(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_.+-", c)
}

// Doomed returns the name of a volume once its removal has committed. No mount finds the volume
// then, because no PersistentVolume can have this name.
func (n Name) Doomed() Name { return doomedPrefix + n }

// IsDoomed reports whether the removal of the volume with this name has committed.
func (n Name) IsDoomed() bool { return strings.HasPrefix(string(n), doomedPrefix) }

// Undoomed returns the name that a doomed volume had before.
func (n Name) Undoomed() Name { return Name(strings.TrimPrefix(string(n), doomedPrefix)) }

// maxDeviceName is DM_NAME_LEN less its closing NUL (linux/dm-ioctl.h).
const maxDeviceName = 127

// DeviceName returns device-mapper's name for the volume: group and name joined by a
// hyphen, with the hyphens in both doubled.
func DeviceName(g Group, n Name) string {
	return doubled(string(g)) + "-" + doubled(string(n))
}

// SplitDeviceName is the inverse of DeviceName. ok is false where s is not the
// name of a plain logical volume.
func SplitDeviceName(s string) (g Group, n Name, ok bool) {
	for i := 0; i < len(s); i++ {
		if s[i] != '-' {
			continue
		}
		if i+1 < len(s) && s[i+1] == '-' {
			i++
			continue
		}
		g, n = Group(undoubled(s[:i])), Name(undoubled(s[i+1:]))
		return g, n, g != "" && n != "" && DeviceName(g, n) == s
	}
	return "", "", false
}

func doubled(s string) string   { return strings.ReplaceAll(s, "-", "--") }
func undoubled(s string) string { return strings.ReplaceAll(s, "--", "-") }

// checkDeviceName rejects a group and a name that are valid alone but too long together, now or
// once the volume is doomed.
func checkDeviceName(field string, g Group, n Name, layout Layout) error {
	longest := DeviceName(g, n.Doomed())
	if layout == Raid1 {
		longest += "_rimage_9" // the devices of its copies
	}
	if l := len(longest); l > maxDeviceName {
		return invalid(field, string(n), "is too long together with volume group %q: device-mapper would need %d characters and has %d; use a shorter name", g, l, maxDeviceName)
	}
	return nil
}
