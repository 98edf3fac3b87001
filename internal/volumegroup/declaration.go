// Package volumegroup decides which disks of a node become which declared volume group. It does no
// I/O: its decisions depend only on a View, and the engine carries them out.
package volumegroup

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/diskid"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Declaration is what one VolumeGroup declares for this node.
type Declaration struct {
	Name      string // of the VolumeGroup, which identifies it
	Group     volume.Group
	Selectors []Selector
	Loop      *Loop        // instead of selectors
	ThinPool  volume.Name  // empty: none
	ThinSize  volume.Bytes // of its data; 0: what the metadata leaves
	Extend    bool
	// Reported: this node has reported, lately or long ago, that it created the group.
	Reported bool
	// ReuseDisks are disks that may be taken although they were taken before: ID or ID@NOTE.
	ReuseDisks []string
	// Discovered are the disks of this node that are or were volumes as they are.
	Discovered Discovered
}

// Discovered is what the node knows of disks that are volumes as they are, undivided.
type Discovered struct {
	// Disks maps the IDs of disks, in the form of package diskid, to true for a disk that is a
	// volume, or ready to be one, and to false for a disk that was one.
	Disks map[string]bool
	// Unknown is why that is not known; empty if it is.
	Unknown string
}

// Equal reports whether d and other are equal.
func (d Discovered) Equal(other Discovered) bool {
	return d.Unknown == other.Unknown && maps.Equal(d.Disks, other.Disks)
}

// refusalReason returns why a disk is not taken because it, or a part of it, was discovered; empty if it
// may be. reuse: a person wants the disk to be taken, whatever it was.
func (d Discovered) refusalReason(disk Disk, reuse bool) string {
	if disk.Loop != "" {
		return ""
	}
	if d.Unknown != "" {
		return "it is unknown whether the VolumeDiscovery offers it as a volume: " + d.Unknown
	}
	reason := ""
	for _, other := range slices.Sorted(maps.Keys(d.Disks)) {
		switch {
		case !diskid.Overlap(other, disk.ID):
		case d.Disks[other]:
			return fmt.Sprintf("the VolumeDiscovery offers it as a volume (%s); remove it from there, and delete its PersistentVolume, before a volume group is created on it", other)
		case !reuse:
			reason = fmt.Sprintf("the VolumeDiscovery offered it as a volume before (%s); it is not used unless the annotation %s of the VolumeGroup names it (%s)", other, annotation, disk.ID)
		}
	}
	return reason
}

// A Selector matches the disks to which all its fields apply. Empty fields apply to all disks; at
// least one of ByID and Path is not empty.
type Selector struct {
	ByID, Path       string // patterns of path.Match
	MinSize, MaxSize volume.Bytes
	Rotational       *bool
}

// Validate checks what the API server cannot check, or may not have checked.
func (d Declaration) Validate() error {
	if _, err := volume.ParseGroup("spec.name", string(d.Group)); err != nil {
		return err
	}
	if d.ThinPool != "" {
		if _, err := volume.ParseThinPool("spec.thinPool.name", string(d.ThinPool)); err != nil {
			return err
		}
	}
	if d.ThinSize < 0 {
		return &volume.FieldError{Field: "spec.thinPool.size", Reason: "is not a valid size"}
	}
	if d.Loop != nil {
		if len(d.Selectors) > 0 {
			return &volume.FieldError{Field: "spec.loop", Reason: "excludes spec.disks; declare the disks in another VolumeGroup"}
		}
		return d.Loop.Validate("spec.loop.file", "spec.loop.size", "spec.loop.forTests")
	}
	if len(d.Selectors) == 0 {
		return &volume.FieldError{Field: "spec.disks", Reason: "is empty; name disks by byID or path"}
	}
	for i, s := range d.Selectors {
		if s.MinSize < 0 || s.MaxSize < 0 {
			return &volume.FieldError{Field: fmt.Sprintf("spec.disks[%d]", i), Reason: "has a minSize or maxSize that is not a valid size"}
		}
		if s.ByID == "" && s.Path == "" {
			return &volume.FieldError{Field: fmt.Sprintf("spec.disks[%d]", i), Reason: "names neither byID nor path; a disk is never selected by its size alone"}
		}
		for field, pattern := range map[string]string{"byID": s.ByID, "path": s.Path} {
			if err := checkPattern(fmt.Sprintf("spec.disks[%d].%s", i, field), pattern); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkPattern rejects patterns whose name has a wildcard among its first two characters, or whose
// directory has one: they would match any disk.
func checkPattern(field, pattern string) error {
	if pattern == "" {
		return nil
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return &volume.FieldError{Field: field, Value: pattern, Reason: "is not a valid pattern; check for an unclosed ["}
	}
	name := path.Base(pattern)
	if literal := strings.IndexAny(name, "*?["); literal >= 0 && literal < 2 || strings.ContainsAny(path.Dir(pattern), "*?[") {
		return &volume.FieldError{Field: field, Value: pattern, Reason: "would match every device; begin the name with the kind of the disks, as in /dev/sd* or nvme-Samsung*"}
	}
	return nil
}

// A Disk is a whole disk of the node.
type Disk struct {
	ID         string   // identifies it among all others; empty if it does not identify itself
	Path       string   // of its device at present
	Links      []string // other paths that lead to it
	Size       volume.Bytes
	Rotational bool
	Removable  bool
	Remote     bool // other nodes may reach it as well
	// Loop is its backing file, if it is one of flexlvm's loop devices.
	Loop string
}

// Matches reports whether one of the declaration's selectors matches the disk, or the disk is the
// declared loop device, which no selector matches.
func (d Declaration) Matches(disk Disk) bool {
	if d.Loop != nil || disk.Loop != "" {
		return d.Loop != nil && d.Loop.File == disk.Loop
	}
	return slices.ContainsFunc(d.Selectors, func(s Selector) bool { return s.matches(disk) })
}

func (s Selector) matches(d Disk) bool {
	paths := append([]string{d.Path}, d.Links...)
	ids := []string{d.ID}
	for _, link := range d.Links {
		if path.Base(path.Dir(link)) == "by-id" {
			ids = append(ids, path.Base(link))
		}
	}
	switch {
	case s.ByID == "" && s.Path == "":
		return false
	case s.ByID != "" && !anyMatches(s.ByID, ids), s.Path != "" && !anyMatches(s.Path, paths):
		return false
	case d.Size < s.MinSize, s.MaxSize > 0 && d.Size > s.MaxSize:
		return false
	}
	return s.Rotational == nil || *s.Rotational == d.Rotational
}

func anyMatches(pattern string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		is, err := path.Match(pattern, name)
		return err == nil && is && name != ""
	})
}

// reuseEntry reports whether the declaration asks for the disk to be taken again, with an entry that has
// not been used yet, and returns the entry.
func (d Declaration) reuseEntry(id string, used []string) (entry string, found bool) {
	for _, entry := range d.ReuseDisks {
		name, _, _ := strings.Cut(entry, "@")
		if name == id && id != "" && !slices.Contains(used, entry) {
			return entry, true
		}
	}
	return "", false
}

// Tag returns the tag of the group that a declaration creates.
func Tag(declaration string) string { return tagPrefix + declaration }

const tagPrefix = "flexlvm.declared="

// DeclaredBy returns the name of the declaration that created a group with these tags; empty if
// there is none.
func DeclaredBy(tags []string) string {
	for _, t := range tags {
		if name, is := strings.CutPrefix(t, tagPrefix); is {
			return name
		}
	}
	return ""
}
