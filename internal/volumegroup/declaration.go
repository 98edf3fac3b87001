// Package volumegroup decides which disks of a node become which declared volume group. It
// does no I/O: what it decides follows from a View alone, and is carried out by the engine.
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

// A Declaration is what one VolumeGroup says of this node.
type Declaration struct {
	Name      string // of the VolumeGroup, which tells it from all others
	Group     volume.Group
	Selectors []Selector
	Loop      *Loop        // in place of selectors
	ThinPool  volume.Name  // empty: none
	ThinSize  volume.Bytes // of its data; 0: what its metadata leaves
	Extend    bool
	// Reported: this node has reported that it made the group, lately or long ago.
	Reported bool
	// Again are disks that may be taken although they were taken before: ID or ID@NOTE.
	Again []string
	// Discovered are disks of this node that are volumes as they are, or were.
	Discovered Discovered
}

// Discovered is what the node knows of disks that are volumes as they are, of which nothing is
// cut.
type Discovered struct {
	// Disks by their IDs, as package diskid has them: true for one that is a volume, or ready to
	// be; false for one that was.
	Disks map[string]bool
	// Unknown says why that is not known; empty if it is.
	Unknown string
}

// Equal reports whether both know the same.
func (d Discovered) Equal(other Discovered) bool {
	return d.Unknown == other.Unknown && maps.Equal(d.Disks, other.Disks)
}

// holds says why a disk is not taken for what was discovered of it, or of a part of it; asked: a
// person wants it to be taken, whatever was.
func (d Discovered) holds(disk Disk, asked bool) string {
	if disk.Loop != "" {
		return ""
	}
	if d.Unknown != "" {
		return "it is not known whether it is a volume as it is: " + d.Unknown
	}
	reason := ""
	for _, other := range slices.Sorted(maps.Keys(d.Disks)) {
		switch {
		case !diskid.Overlap(other, disk.ID):
		case d.Disks[other]:
			return fmt.Sprintf("it is a volume as it is, by the VolumeDiscovery (%s); remove it from there, and its PersistentVolume, before a group is made of it", other)
		case !asked:
			reason = fmt.Sprintf("it was a volume as it is, by the VolumeDiscovery (%s); it is not taken unless the annotation %s of the VolumeGroup asks for it (%s)", other, annotation, disk.ID)
		}
	}
	return reason
}

// A Selector matches disks for which all that it says is true. Empty fields say nothing;
// one of ByID and Path is not empty.
type Selector struct {
	ByID, Path       string // patterns of path.Match
	MinSize, MaxSize volume.Bytes
	Rotational       *bool
}

// Validate checks what the API server cannot, or may not have checked.
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
		return &volume.FieldError{Field: "spec.thinPool.size", Reason: "is no size"}
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
			return &volume.FieldError{Field: fmt.Sprintf("spec.disks[%d]", i), Reason: "has a minSize or maxSize that is no size"}
		}
		if s.ByID == "" && s.Path == "" {
			return &volume.FieldError{Field: fmt.Sprintf("spec.disks[%d]", i), Reason: "names neither byID nor path; a disk is never taken for its size alone"}
		}
		for field, pattern := range map[string]string{"byID": s.ByID, "path": s.Path} {
			if err := checkPattern(fmt.Sprintf("spec.disks[%d].%s", i, field), pattern); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkPattern refuses patterns that begin with a wildcard, or in the name of which nothing
// is said literally: those match whatever is there.
func checkPattern(field, pattern string) error {
	if pattern == "" {
		return nil
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return &volume.FieldError{Field: field, Value: pattern, Reason: "is no pattern; a bracket may be open"}
	}
	name := path.Base(pattern)
	if literal := strings.IndexAny(name, "*?["); literal >= 0 && literal < 2 || strings.ContainsAny(path.Dir(pattern), "*?[") {
		return &volume.FieldError{Field: field, Value: pattern, Reason: "would match whatever is there; begin the name with the kind of the disks, as in /dev/sd* or nvme-Samsung*"}
	}
	return nil
}

// A Disk is a whole disk of the node.
type Disk struct {
	ID         string   // tells it from all others; empty where it says nothing of itself
	Path       string   // of its device at present
	Links      []string // other paths that lead to it
	Size       volume.Bytes
	Rotational bool
	Removable  bool
	Remote     bool // other nodes may reach it as well
	// Loop is the file that it is made of, where it is a loop device of flexlvm's.
	Loop string
}

// Matches reports whether one of the declaration's selectors matches the disk, or it is the
// loop device that is declared, which no selector matches.
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

// asks reports whether the declaration asks for the disk to be taken again, by an entry
// that has not been used yet, and which entry that is.
func (d Declaration) asks(id string, used []string) (entry string, yes bool) {
	for _, entry := range d.Again {
		name, _, _ := strings.Cut(entry, "@")
		if name == id && id != "" && !slices.Contains(used, entry) {
			return entry, true
		}
	}
	return "", false
}

// Tag returns the tag of the group that a declaration made.
func Tag(declaration string) string { return tagPrefix + declaration }

const tagPrefix = "flexlvm.declared="

// DeclaredBy returns the name of the declaration that made a group with these tags, or
// an empty one.
func DeclaredBy(tags []string) string {
	for _, t := range tags {
		if name, is := strings.CutPrefix(t, tagPrefix); is {
			return name
		}
	}
	return ""
}
