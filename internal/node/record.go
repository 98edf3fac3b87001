package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A record is this node's copy of a volume's tags, so that mounting the volume again runs no program. It is a
// cache: it is valid only while the kernel's device has the same UUID, and it changes before the volume's
// tags forbid a mount. Its modification time is the volume's last use.
//
// A record has two more purposes. A recorded volume may have been handed out, and so may hold data: it is never
// formatted, whatever its tags say. And if the volume of a record is gone, no empty volume may replace it: either
// data was lost, or the volume was removed permanently and a call is late (see writeTombstone).
type record struct {
	// State is Creating until the tags say Ready; Doomed marks a removed volume.
	State volume.State `json:"state"`
	// Since is when the volume left state Ready.
	Since      time.Time     `json:"since,omitzero"`
	VolumeUUID string        `json:"volumeUUID"`
	FS         string        `json:"fs"`
	Size       volume.Bytes  `json:"size"`
	Namespace  string        `json:"namespace"`
	Cluster    string        `json:"cluster,omitempty"`
	Kind       volume.Kind   `json:"kind"`
	LUKS       string        `json:"luks,omitempty"`
	FSType     volume.FSType `json:"fsType,omitempty"`
	// Wiped is how much of a doomed volume's device has been wiped.
	Wiped volume.Bytes `json:"wiped,omitempty"`
}

func newRecord(uuid string, t volume.Tags) record {
	return record{State: t.State, VolumeUUID: uuid, FS: t.FS, Size: t.Size, Namespace: t.Namespace, Cluster: t.Cluster, Kind: t.Kind, LUKS: t.LUKS, FSType: t.FSType}
}

func (r record) tags() volume.Tags {
	return volume.Tags{State: r.State, FS: r.FS, Size: r.Size, Namespace: r.Namespace, Cluster: r.Cluster, Kind: r.Kind, LUKS: r.LUKS, FSType: r.FSType}
}

// mountable reports whether a mount may open a volume with this record without asking LVM.
//
// The tags of a raw block volume whose record says creating may already say ready (makeReady), and pods may have
// written to it. Its container must then not be opened like that of a new volume, while LVM commands run
// (openContainer).
func (r record) mountable() bool {
	return r.State == volume.Ready || r.State == volume.Creating && r.FSType != volume.Raw
}

// records is the directory of all records: one file per volume, in one directory per group. The strict types
// of their names make each a single path component.
type records string

func (d records) file(g volume.Group, n volume.Name) string {
	return filepath.Join(string(d), string(g), string(n))
}

// read returns a volume's record. The error wraps os.ErrNotExist if there is none; any other error means that
// there is a record which cannot be used.
func (d records) read(g volume.Group, n volume.Name) (record, error) {
	b, err := os.ReadFile(d.file(g, n))
	if err != nil {
		return record{}, fmt.Errorf("read record: %w", err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, fmt.Errorf("read record %s: %w", d.file(g, n), err)
	}
	if r.State == "" {
		return record{}, fmt.Errorf("read record %s: state is empty", d.file(g, n))
	}
	if r.VolumeUUID == "" && r.State != volume.Doomed {
		return record{}, fmt.Errorf("read record %s: volumeUUID is empty, so it does not say which volume it is of", d.file(g, n))
	}
	return r, nil
}

// exists reports whether there is a record of that name, whatever its content.
func (d records) exists(g volume.Group, n volume.Name) (bool, error) {
	_, err := os.Lstat(d.file(g, n))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// write replaces a volume's record atomically: a crash leaves the old one or the new one. The last use does
// not change. For a new record it is now, and also for one that replaces the tombstone of another volume of
// that name.
func (d records) write(g volume.Group, n volume.Name, r record) error {
	used := d.lastUsed(g, n)
	if old, err := d.read(g, n); err == nil && old.freesName() {
		used = time.Time{}
	}
	return d.writeUsed(g, n, r, used)
}

// writeUsed is write with the given last use; zero is now.
func (d records) writeUsed(g volume.Group, n volume.Name, r record, used time.Time) error {
	if err := replaceRecord(d.file(g, n), r, used); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

func replaceRecord(file string, r record, used time.Time) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// A volume's name cannot begin with a hyphen, so this is not the record of another volume.
	tmp := filepath.Join(dir, "-"+filepath.Base(file))
	if err := durable.WriteFile(tmp, append(b, '\n')); err != nil {
		return err
	}
	if !used.IsZero() {
		if err := os.Chtimes(tmp, used, used); err != nil {
			return err
		}
	}
	if err := os.Rename(tmp, file); err != nil {
		return err
	}
	return syncDirs(dir)
}

// writeEmpty creates an empty record for a volume without one. It cannot be parsed, so it counts as the record of a
// volume that a pod has had. A record that exists stays as it is.
func (d records) writeEmpty(g volume.Group, n volume.Name) error {
	file := d.file(g, n)
	err := os.MkdirAll(filepath.Dir(file), 0o700)
	if err != nil {
		return fmt.Errorf("mark record: %w", err)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close(), syncDirs(filepath.Dir(file)))
	}
	if err != nil {
		return fmt.Errorf("mark record: %w", err)
	}
	return nil
}

// syncDirs makes the names in a directory durable, and the directory itself: the tags that change next are on
// another disk, and a power cut must not bring back an outdated record.
func syncDirs(dir string) error { return durable.Sync(dir, filepath.Dir(dir)) }

// remove removes a volume's record, if there is one.
func (d records) remove(g volume.Group, n volume.Name) error {
	err := os.Remove(d.file(g, n))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = syncDirs(filepath.Dir(d.file(g, n)))
	}
	if err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	return nil
}

// touch sets a volume's last use. It does nothing for a volume without a record.
func (d records) touch(g volume.Group, n volume.Name, now time.Time) error {
	if err := os.Chtimes(d.file(g, n), now, now); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("stamp last use: %w", err)
	}
	return nil
}

// touchDurably is touch, and makes the last use durable.
func (d records) touchDurably(g volume.Group, n volume.Name, now time.Time) error {
	if err := d.touch(g, n, now); err != nil {
		return err
	}
	if err := durable.Sync(d.file(g, n)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("stamp last use: %w", err)
	}
	return nil
}

// lastUsed returns when the volume was last mounted or unmounted, zero if this node does not know.
func (d records) lastUsed(g volume.Group, n volume.Name) time.Time {
	st, err := os.Stat(d.file(g, n))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime().UTC()
}
