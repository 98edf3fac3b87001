package discovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"

	"github.com/flexlvm/flexlvm/internal/diskid"
	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/quota"
)

// An Entry is what a node remembers of a disk or a file system.
type Entry struct {
	Path string `json:"path"`
	// Volume is the UID of the PersistentVolume that was last made of it, and Claim that of
	// the claim that was last bound to this.
	Volume string `json:"volume,omitempty"`
	Claim  string `json:"claim,omitempty"`
	// Cleaned are the UIDs of PersistentVolumes after which it was cleaned, the newest last.
	Cleaned []string `json:"cleaned,omitempty"`
	// Offset is up to where it is erased after Volume, in the way of Erasure.
	Offset  int64   `json:"offset,omitempty"`
	Erasure Erasure `json:"erasure,omitempty"`
	// Offer is the number of its last offer, and Offered whether that stands.
	Offer   int64 `json:"offer,omitempty"`
	Offered bool  `json:"offered,omitempty"`
	// Owner is what its topmost directory was like when it was first offered, and is like again once it is cleaned.
	Owner *Owner `json:"owner,omitempty"`
}

// An Owner is of whom a directory is, what they may do with it, and what its files inherit.
type Owner struct {
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	Mode uint32 `json:"mode"`
	// Attributes is nil where they are not noted: earlier releases did not.
	Attributes *quota.Attributes `json:"attributes,omitempty"`
}

// restored are the attributes that a directory has once it is cleaned: none where none are noted, because a tenant
// may have set those that it has.
func (o *Owner) restored() quota.Attributes {
	if o.Attributes == nil {
		return quota.Attributes{}
	}
	return *o.Attributes
}

// keptCleaned bounds what an entry remembers.
const keptCleaned = 32

// OwnerUnknown reports whether what its topmost directory is like is to be noted when it is offered. Where an earlier
// release has noted no attributes, that is only so if nobody has had it: a tenant may have set those that it has.
func (e Entry) OwnerUnknown() bool {
	return e.Owner == nil || e.Owner.Attributes == nil && e.Volume == "" && len(e.Cleaned) == 0
}

// CleanedAfter reports whether it was cleaned after the PersistentVolume with this UID.
func (e Entry) CleanedAfter(volume string) bool { return slices.Contains(e.Cleaned, volume) }

// discarded reports whether it was discarded after its volume.
func (e Entry) discarded() bool {
	return e.Erasure == Discard && e.Volume != "" && e.CleanedAfter(e.Volume)
}

// Equal reports whether two entries say the same.
func (e Entry) Equal(other Entry) bool { return reflect.DeepEqual(e, other) }

// HandedOut returns the entry of what a PersistentVolume was made of last. Nothing that was
// cleaned before counts any more.
func (e Entry) HandedOut(volume string) Entry {
	if e.Volume != volume {
		e.Claim = ""
	}
	e.Volume, e.Offset, e.Offered = volume, 0, false
	// Somebody may give it to another claim before it is deleted.
	e.Cleaned = slices.DeleteFunc(slices.Clone(e.Cleaned), func(uid string) bool { return uid == volume })
	return e
}

// Empty returns the entry of what was found to be empty after its volume, and after others of
// which it was a part, or which were a part of it. Whatever was discarded before has been written
// to since.
func (e Entry) Empty(others []string) Entry {
	e = e.cleanAfter(others...)
	if e.Volume != "" {
		e = e.cleanAfter(e.Volume)
	}
	e.Offset, e.Erasure = 0, KeepDevice
	return e
}

// Clean returns the entry of what was cleaned after its volume. The attributes of its topmost directory are known
// from then on.
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
	e.Cleaned = e.Cleaned[max(0, len(e.Cleaned)-keptCleaned):]
	return e
}

// A Ledger has the entries by Found.Disk.
type Ledger map[string]Entry

// ReadLedger returns an empty ledger where none was written. One that cannot be read is an
// error: nobody can tell then what was handed out to whom.
func ReadLedger(file string) (Ledger, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return Ledger{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what was handed out: %w", err)
	}
	out := Ledger{}
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("read what was handed out: %s: %w; nothing is offered or cleaned until it can be read; if it is beyond repair, delete the released PersistentVolumes of this node, clean their disks by hand, and remove it", file, err)
	}
	return out, nil
}

// Uncleaned returns the UIDs of the PersistentVolumes that had a part of a disk, or what it is a
// part of, under another name, and after which neither was cleaned.
func (l Ledger) Uncleaned(disk string) (volumes []string) {
	for other, e := range l {
		if other != disk && diskid.Overlap(other, disk) && e.Volume != "" && !e.CleanedAfter(e.Volume) && !l[disk].CleanedAfter(e.Volume) {
			volumes = append(volumes, e.Volume)
		}
	}
	slices.Sort(volumes)
	return slices.Compact(volumes)
}

// Withdraw notes that only what is in seen is offered any more, and that the erasure of all else begins
// anew. What is in busy stays as it is, because others write that.
func (l Ledger) Withdraw(seen, busy map[string]bool) {
	for id, e := range l {
		if !seen[id] && !busy[id] {
			e.Offered, e.Offset = false, 0
			l[id] = e
		}
	}
}

// Write replaces the file so that a crash leaves the old one or the new.
func (l Ledger) Write(file string) error {
	text, err := json.MarshalIndent(l, "", "  ")
	if err == nil {
		err = durable.ReplaceFile(file, append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write down what is handed out: %w", err)
	}
	return nil
}
