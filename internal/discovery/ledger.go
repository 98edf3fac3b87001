package discovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"

	"github.com/flexlvm/flexlvm/internal/diskid"
	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/quota"
)

// An Entry is a node's record of a disk or a file system.
type Entry struct {
	Path string `json:"path"`
	// Aliases is Found.Aliases.
	Aliases []string `json:"aliases,omitempty"`
	// Start and Size are where a partition, or the file system on one, was when it was last offered or handed out: after a
	// change of the partition table, another partition may have its number or its place. They are 0 if it is on no
	// partition, or an earlier release offered it.
	Start int64 `json:"start,omitempty"`
	Size  int64 `json:"size,omitempty"`
	// Volume is the UID of the last PersistentVolume created for it, and Claim the UID of the claim
	// that was last bound to that PersistentVolume.
	Volume string `json:"volume,omitempty"`
	Claim  string `json:"claim,omitempty"`
	// Cleaned are the UIDs of PersistentVolumes after which it was cleaned, newest last.
	Cleaned []string `json:"cleaned,omitempty"`
	// Offset is the byte up to which it is erased after Volume, in the way of Erasure.
	Offset  int64   `json:"offset,omitempty"`
	Erasure Erasure `json:"erasure,omitempty"`
	// Offer is the number of its last offer, and Offered whether that offer stands.
	Offer   int64 `json:"offer,omitempty"`
	Offered bool  `json:"offered,omitempty"`
	// Owner is how its topmost directory was when it was first offered; a cleaning restores that.
	Owner *Owner `json:"owner,omitempty"`
}

// An Owner is a directory's owner, its mode, and what its files inherit.
type Owner struct {
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	Mode uint32 `json:"mode"`
	// Attributes is nil if they are not recorded: earlier releases did not record them.
	Attributes *quota.Attributes `json:"attributes,omitempty"`
}

// restored returns the attributes that a cleaned directory gets: none if none are recorded, because
// a tenant may have set the present ones.
func (o *Owner) restored() quota.Attributes {
	if o.Attributes == nil {
		return quota.Attributes{}
	}
	return *o.Attributes
}

// maxCleaned bounds Entry.Cleaned.
const maxCleaned = 32

// OwnerUnknown reports whether the owner of its topmost directory must be recorded when it is
// offered. If an earlier release recorded no attributes, this is true only if nobody has used it:
// otherwise a tenant may have set the present ones.
func (e Entry) OwnerUnknown() bool {
	return e.Owner == nil || e.Owner.Attributes == nil && e.Volume == "" && len(e.Cleaned) == 0
}

// CleanedAfter reports whether it was cleaned after the PersistentVolume with this UID.
func (e Entry) CleanedAfter(volume string) bool { return slices.Contains(e.Cleaned, volume) }

// discarded reports whether it was discarded after its last PersistentVolume.
func (e Entry) discarded() bool {
	return e.Erasure == Discard && e.Volume != "" && e.CleanedAfter(e.Volume)
}

// at returns the entry for a partition, or a file system on one, that is where f is.
func (e Entry) at(f *Found) Entry {
	e.Start, e.Size = f.Start, f.PartitionSize
	return e
}

// movedTo reports whether f is a partition elsewhere on its disk than the entry's. A file system is known by its UUID,
// wherever it is.
func (e Entry) movedTo(f *Found) bool {
	return f.Kind == Device && e.Start != 0 && f.Start != 0 && (e.Start != f.Start || e.Size != f.PartitionSize)
}

// exchanged reports whether f is in the place of the entry's disk.
func (e Entry) exchanged(f *Found) bool {
	return f.inPlaceOf(diskid.Names{ID: f.Disk, Aliases: e.Aliases})
}

// WithAliases returns the entry with the aliases of f. If those may be incomplete, or f is another disk than the entry's,
// the known ones stay; but those of another disk are recorded once it is offered, because it is empty then.
func (e Entry) WithAliases(f *Found, offered bool) Entry {
	if len(e.Aliases) == 0 || f.AliasesUnknown == nil && (offered || !e.exchanged(f)) {
		e.Aliases = f.Aliases
	}
	return e
}

// grownTo reports whether f is the entry's partition, which was extended at its end.
func (e Entry) grownTo(f *Found) bool {
	return f.Kind == Device && e.Start != 0 && e.Start == f.Start && e.Size < f.PartitionSize
}

// Equal reports whether two entries are equal.
func (e Entry) Equal(other Entry) bool { return reflect.DeepEqual(e, other) }

// HandedOut returns the entry for a disk whose last PersistentVolume has this UID. What was erased
// or cleaned after this PersistentVolume no longer counts.
func (e Entry) HandedOut(volume string) Entry {
	if e.Volume != volume {
		e.Claim = ""
	}
	e.Volume, e.Offset, e.Offered = volume, 0, false
	// The PersistentVolume may be bound to another claim before it is deleted.
	e.Cleaned = slices.DeleteFunc(slices.Clone(e.Cleaned), func(uid string) bool { return uid == volume })
	return e
}

// Empty returns the entry for what was found empty after its last PersistentVolume, and after
// others of disks that it was a part of, or that were a part of it. A discard no longer counts,
// because it was written to since.
func (e Entry) Empty(others []string) Entry {
	e = e.cleanAfter(others...)
	if e.Volume != "" {
		e = e.cleanAfter(e.Volume)
	}
	e.Offset, e.Erasure = 0, KeepDevice
	return e
}

// Clean returns the entry for what was cleaned after its last PersistentVolume. From then on, the
// attributes of its topmost directory are known.
func (e Entry) Clean() Entry {
	e.Offset = 0
	if e.Owner != nil {
		owner, attributes := *e.Owner, e.Owner.restored()
		owner.Attributes = &attributes
		e.Owner = &owner
	}
	return e.cleanAfter(e.Volume)
}

func (e Entry) cleanAfter(volumes ...string) Entry {
	e.Cleaned = append(slices.Clone(e.Cleaned), volumes...)
	e.Cleaned = e.Cleaned[max(0, len(e.Cleaned)-maxCleaned):]
	return e
}

// A Ledger maps each Found.Disk to its entry.
type Ledger map[string]Entry

// ReadLedger returns an empty ledger if none was written. A ledger that cannot be read is an error,
// because nothing else records what was handed out.
func ReadLedger(file string) (Ledger, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return Ledger{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of offered disks: %w", err)
	}
	out := Ledger{}
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("read the record of offered disks: %s: %w; nothing is offered or cleaned until the file can be read; if it cannot be repaired, delete the released PersistentVolumes of this node, clean their disks by hand, and remove the file", file, err)
	}
	return out, nil
}

// overlaps reports whether the entry with this ID is of a partition, or of a file system on one, that was, at least in
// part, where the partition f is on its disk.
func (e Entry) overlaps(id string, f *Found) bool {
	sameDisk := func(other string) bool { return diskid.SamePartitioned(other, f.Disk) }
	return e.Start != 0 && f.Start != 0 && (sameDisk(id) || slices.ContainsFunc(e.Aliases, sameDisk)) &&
		e.Start < f.Start+f.PartitionSize && f.Start < e.Start+e.Size
}

// Uncleaned returns the UIDs of the PersistentVolumes that had what was found, a part of it, or what it is a part of,
// under another ID, and after which neither was cleaned.
func (l Ledger) Uncleaned(f *Found) (volumes []string) {
	for id, e := range l {
		other := diskid.Names{ID: id, Aliases: e.Aliases}
		if id == f.Disk || !other.Overlap(f.Names()) && !e.overlaps(id, f) {
			continue
		}
		if e.Volume != "" && !e.CleanedAfter(e.Volume) && !l[f.Disk].CleanedAfter(e.Volume) {
			volumes = append(volumes, e.Volume)
		}
	}
	slices.Sort(volumes)
	return slices.Compact(volumes)
}

// GrownOver returns the ID of another partition, or of a file system on one, that was, at least in part, where the
// partition f was extended, and was not cleaned after its last PersistentVolume; empty if there is none. That f was
// cleaned since does not count, because it was smaller then.
func (l Ledger) GrownOver(f *Found) string {
	was, added := l[f.Disk], *f
	added.Start, added.PartitionSize = was.Start+was.Size, f.Start+f.PartitionSize-(was.Start+was.Size)
	for _, id := range slices.Sorted(maps.Keys(l)) {
		if e := l[id]; id != f.Disk && e.overlaps(id, &added) && e.Volume != "" && !e.CleanedAfter(e.Volume) {
			return id
		}
	}
	return ""
}

// Withdraw records that only what is in seen is still offered, and that the erasure of everything
// else starts again. Entries in busy stay unchanged, because others write them.
func (l Ledger) Withdraw(seen, busy map[string]bool) {
	for id, e := range l {
		if !seen[id] && !busy[id] {
			e.Offered, e.Offset = false, 0
			l[id] = e
		}
	}
}

// Write replaces the file atomically: a crash leaves the old ledger or the new one.
func (l Ledger) Write(file string) error {
	if err := durable.ReplaceJSON(file, l); err != nil {
		return fmt.Errorf("write the record of offered disks: %w", err)
	}
	return nil
}
