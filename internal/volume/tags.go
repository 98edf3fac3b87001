package volume

import (
	"strconv"
	"strings"
)

// TagOwned marks flexlvm's logical volumes; flexlvm touches none without it.
const TagOwned = "flexlvm"

const (
	tagState     = "flexlvm.state="
	tagFS        = "flexlvm.fs="
	tagSize      = "flexlvm.size="
	tagNamespace = "flexlvm.ns="
	tagCluster   = "flexlvm.cluster="
	tagKind      = "flexlvm.kind="
	tagReclaim   = "flexlvm.reclaim="
	tagWipe      = "flexlvm.wipe="
	tagClone     = "flexlvm.clone="
	tagLUKS      = "flexlvm.luks="
	tagFSType    = "flexlvm.fstype="
	tagZeroed    = "flexlvm.zeroed="
	tagAdopting  = "flexlvm.adopting="
	tagFill      = "flexlvm.fill="
	tagFixed     = "flexlvm.fixed="
)

// TagRaw is the tag of a volume without a file system.
const TagRaw = tagFSType + string(Raw)

// Tags describes a volume in LVM's metadata. The tags are short because the metadata area
// is finite.
type Tags struct {
	State     State
	FS        string // UUID of its file system, chosen before mkfs
	Size      Bytes  // what the user may write; updated when the volume grows
	Namespace string
	Cluster   string // may be empty
	Kind      Kind
	// Reclaim and Wipe come from the volume's class and are written when the volume is released.
	// Their defaults have no tag.
	Reclaim Reclaim
	Wipe    Wipe
	// Clone is the UUID of the file system that the volume is a copy of, from the moment the copy
	// starts until it is an independent volume. While it is set, the volume holds that file system,
	// perhaps still with its UUID, and is neither formatted nor published to a pod.
	Clone string
	// Fill is the progress of a copy that is made byte by byte. It is set only together with Clone,
	// and has no tag once the copy is an independent volume.
	Fill Fill
	// LUKS is the UUID of the container that holds the file system, or a Raw volume, chosen before
	// the container is created; empty if the volume is not encrypted.
	LUKS string
	// FSType has no tag if it is XFS. A release that knows only XFS refuses the others.
	FSType FSType
	// Zeroed is how much of a Raw volume was zeroed, from the beginning of what pods see; in a
	// copy, the copied bytes count too. No pod has ever seen more. Thin volumes do not need it,
	// because their pool zeroes.
	Zeroed Bytes
	// Adopting: a person created the volume, and not all of its content is in its quota yet. Until
	// then it is Retained, and cannot change its state.
	Adopting bool
	// Fixed: the volume does not grow. A person created its file system, whose overhead is larger
	// than DeviceSize allows for, so an extended device would hold less than promised.
	Fixed bool
}

// Copied returns how much of the volume's device, which has this size, a full copy of the volume
// includes. For a Raw volume that is only what a pod may have seen: a growth that was killed may
// have left more on the device, which is not zeroed and holds data of other tenants.
func (t Tags) Copied(device Bytes) Bytes {
	if t.FSType != Raw {
		return device
	}
	size := t.Size.RoundUp(Block)
	if t.LUKS != "" {
		size += LUKSHeader
	}
	return min(device, size)
}

const (
	// AdoptingTag is the tag of a volume whose adoption is not finished.
	AdoptingTag = tagAdopting + "true"
	// FixedTag is the tag of a volume that does not grow.
	FixedTag = tagFixed + "true"
)

// Owned reports whether a logical volume with these tags is flexlvm's.
func Owned(tags []string) bool {
	for _, t := range tags {
		if t == TagOwned {
			return true
		}
	}
	return false
}

// Strings returns the tags as LVM keeps them.
func (t Tags) Strings() []string {
	out := []string{
		TagOwned,
		t.State.Tag(),
		tagFS + t.FS,
		SizeTag(t.Size),
		tagNamespace + t.Namespace,
		tagKind + string(t.Kind),
	}
	if t.Cluster != "" {
		out = append(out, tagCluster+t.Cluster)
	}
	if t.Clone != "" {
		out = append(out, CloneTag(t.Clone))
	}
	if t.Fill != "" {
		out = append(out, t.Fill.Tag())
	}
	if t.LUKS != "" {
		out = append(out, tagLUKS+t.LUKS)
	}
	if t.FSType != XFS {
		out = append(out, tagFSType+t.FSType.String())
	}
	if t.Zeroed > 0 {
		out = append(out, ZeroedTag(t.Zeroed))
	}
	if t.Adopting {
		out = append(out, AdoptingTag)
	}
	if t.Fixed {
		out = append(out, FixedTag)
	}
	return append(out, DisposalTags(t.Reclaim, t.Wipe)...)
}

// IsFlexlvmTag reports whether a tag is one of flexlvm's.
func IsFlexlvmTag(tag string) bool { return tag == TagOwned || strings.HasPrefix(tag, TagOwned+".") }

// CloneTag returns the tag of an unfinished copy of the file system with this UUID.
func CloneTag(fs string) string { return tagClone + fs }

// Fill is the progress of a copy that is made byte by byte.
type Fill string

// The zero value is for all other volumes.
const (
	// FillCopying: the copy may hold only part of its source.
	FillCopying Fill = "copying"
	// FillCopied: the copy holds all of its source, unchanged.
	FillCopied Fill = "copied"
)

// Tag returns the tag for the progress of a copy.
func (f Fill) Tag() string { return tagFill + string(f) }

// DisposalTags returns the tags for r and w; the defaults have none.
func DisposalTags(r Reclaim, w Wipe) []string {
	var out []string
	if r != "" && r != ReclaimLazy {
		out = append(out, tagReclaim+string(r))
	}
	if w != "" && w != WipeNone {
		out = append(out, tagWipe+string(w))
	}
	return out
}

// IsStateTag reports whether a tag holds a volume's state or disposal, which change together.
func IsStateTag(tag string) bool {
	return strings.HasPrefix(tag, tagState) || strings.HasPrefix(tag, tagReclaim) || strings.HasPrefix(tag, tagWipe)
}

// Tag returns the tag for the state.
func (s State) Tag() string { return tagState + string(s) }

// SizeTag returns the tag for the size.
func SizeTag(b Bytes) string { return tagSize + strconv.FormatInt(int64(b), 10) }

// PartlyZeroed reports whether a Raw volume is known not to be zeroed to its end, so that it would
// show data that others left on the disk. No pod has used it.
func (t Tags) PartlyZeroed() bool { return t.Zeroed > 0 && t.Zeroed < t.Size.RoundUp(Block) }

// ZeroedTag returns the tag for how much was zeroed.
func ZeroedTag(b Bytes) string { return tagZeroed + strconv.FormatInt(int64(b), 10) }

// ParseTags parses the tags of a flexlvm volume. Other tags besides flexlvm's are allowed. A
// flexlvm tag that is missing, repeated, unknown or malformed is an error, and a person has to
// check such a volume. The error is a *FieldError.
func ParseTags(tags []string) (Tags, error) {
	found, err := tagValues(tags)
	if err != nil {
		return Tags{}, err
	}
	return tagsFrom(found)
}

// tagValues returns the values of flexlvm's tags by their keys, which end in "=".
func tagValues(tags []string) (map[string]string, error) {
	if !Owned(tags) {
		return nil, invalid("tags", strings.Join(tags, ","), "lack %q: the volume is not flexlvm's", TagOwned)
	}
	found := map[string]string{}
	for _, t := range tags {
		if t == TagOwned || !IsFlexlvmTag(t) {
			continue
		}
		key, value, _ := strings.Cut(t, "=")
		if _, twice := found[key+"="]; twice {
			return nil, invalid("tag", t, "is one of several %s", key)
		}
		found[key+"="] = value
	}
	return found, nil
}

func tagsFrom(found map[string]string) (t Tags, err error) {
	take := func(key string) (string, bool) {
		v, ok := found[key]
		delete(found, key)
		return v, ok
	}
	state, _ := take(tagState)
	if t.State, err = ParseState(tagState, state); err != nil {
		return Tags{}, err
	}
	t.FS, _ = take(tagFS)
	if !fsUUID(t.FS) {
		return Tags{}, invalid(tagFS, t.FS, "is not the UUID of a file system")
	}
	size, _ := take(tagSize)
	if t.Size, err = ParseBytes(tagSize, size); err != nil {
		return Tags{}, err
	}
	ns, _ := take(tagNamespace)
	if t.Namespace, err = ParseNamespace(tagNamespace, ns); err != nil {
		return Tags{}, err
	}
	kind, _ := take(tagKind)
	if t.Kind, err = ParseKind(tagKind, kind); err != nil {
		return Tags{}, err
	}
	if cluster, ok := take(tagCluster); ok {
		if t.Cluster, err = ParseCluster(tagCluster, cluster); err != nil {
			return Tags{}, err
		}
	}
	reclaim, _ := take(tagReclaim)
	if t.Reclaim, err = ParseReclaim(tagReclaim, reclaim); err != nil {
		return Tags{}, err
	}
	wipe, _ := take(tagWipe)
	if t.Wipe, err = ParseWipe(tagWipe, wipe); err != nil {
		return Tags{}, err
	}
	if err := t.takeContent(take); err != nil {
		return Tags{}, err
	}
	for key := range found {
		return Tags{}, unknown("tag", key, "")
	}
	return t, nil
}

// takeContent parses the optional tags about the content of the volume's device.
func (t *Tags) takeContent(take func(key string) (string, bool)) (err error) {
	if err := t.takeCopy(take); err != nil {
		return err
	}
	if luks, ok := take(tagLUKS); ok {
		if t.LUKS = luks; !fsUUID(luks) {
			return invalid(tagLUKS, luks, "is not the UUID of an encrypted volume")
		}
	}
	if fsType, ok := take(tagFSType); ok {
		if t.FSType, err = parseContent(tagFSType, fsType); err != nil {
			return err
		}
	}
	if zeroed, ok := take(tagZeroed); ok {
		if t.FSType != Raw {
			return invalid(tagZeroed, zeroed, "belongs to a volume without a file system (%s%s)", tagFSType, Raw)
		}
		if t.Zeroed, err = ParseBytes(tagZeroed, zeroed); err != nil {
			return err
		}
	}
	if adopting, ok := take(tagAdopting); ok {
		if t.Adopting = tagAdopting+adopting == AdoptingTag; !t.Adopting || t.State != Retained {
			return invalid(tagAdopting, adopting, "is not true, or is on a volume that is not %s", Retained)
		}
	}
	if fixed, ok := take(tagFixed); ok {
		if t.Fixed = tagFixed+fixed == FixedTag; !t.Fixed {
			return invalid(tagFixed, fixed, "is not true")
		}
	}
	return nil
}

// takeCopy parses the tags of an unfinished copy.
func (t *Tags) takeCopy(take func(key string) (string, bool)) error {
	if clone, ok := take(tagClone); ok {
		if t.Clone = clone; !fsUUID(clone) || clone == t.FS {
			return invalid(tagClone, clone, "is not the UUID of another file system")
		}
	}
	if fill, ok := take(tagFill); ok {
		if t.Fill = Fill(fill); t.Clone == "" || t.Fill != FillCopying && t.Fill != FillCopied {
			return invalid(tagFill, fill, "is neither copying nor copied, or the volume is no unfinished copy")
		}
	}
	return nil
}

// fsUUID reports whether s is a UUID in its canonical form: 8-4-4-4-12 lower-case
// hexadecimal digits.
func fsUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i, c := range s {
		hyphen := i == 8 || i == 13 || i == 18 || i == 23
		hex := c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		if hyphen != (c == '-') || !hyphen && !hex {
			return false
		}
	}
	return true
}
