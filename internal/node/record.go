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

// A record is what this node remembers of a volume, so that mounting it again
// asks no program. It is a cache: it counts only while the device that the kernel
// shows carries the same UUID, and it changes before the volume's tags say that it
// may not be mounted any more. Its modification time is the volume's last use.
//
// It is good for two things more. A volume on record was handed out and may hold
// data: it is never formatted, whatever its tags say. And where a record stands
// and the volume is gone, an empty volume must not take its place: either data
// was lost, or the volume was removed for good and a call is late (see bury).
type record struct {
	// State is Creating until the tags say Ready; empty means Ready, as in records
	// of the first release. Doomed is a volume that was removed.
	State volume.State `json:"state,omitempty"`
	// Since is when the volume left state Ready.
	Since      time.Time    `json:"since,omitzero"`
	VolumeUUID string       `json:"volumeUUID"`
	FS         string       `json:"fs"`
	Size       volume.Bytes `json:"size"`
	Namespace  string       `json:"namespace"`
	Cluster    string       `json:"cluster,omitempty"`
	Kind       volume.Kind  `json:"kind"`
	LUKS       string       `json:"luks,omitempty"`
	// FSType is XFS in records of releases that made nothing else.
	FSType volume.FSType `json:"fsType,omitempty"`
	// Wiped is how much of a doomed volume's device has been wiped.
	Wiped volume.Bytes `json:"wiped,omitempty"`
}

func newRecord(uuid string, t volume.Tags) record {
	return record{State: t.State, VolumeUUID: uuid, FS: t.FS, Size: t.Size, Namespace: t.Namespace, Cluster: t.Cluster, Kind: t.Kind, LUKS: t.LUKS, FSType: t.FSType}
}

func (r record) tags() volume.Tags {
	return volume.Tags{State: r.State, FS: r.FS, Size: r.Size, Namespace: r.Namespace, Cluster: r.Cluster, Kind: r.Kind, LUKS: r.LUKS, FSType: r.FSType}
}

// records is the directory that holds them: one file a volume, in one directory
// a group. Names come from volume's strict types, so each is one component.
type records string

func (d records) file(g volume.Group, n volume.Name) string {
	return filepath.Join(string(d), string(g), string(n))
}

// read returns a volume's record. The error wraps os.ErrNotExist where there is
// none; any other means that there is one which cannot be used.
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
		r.State = volume.Ready
	}
	if r.VolumeUUID == "" && r.State != volume.Doomed {
		return record{}, fmt.Errorf("read record %s: volumeUUID is empty, so it does not say which volume it is of", d.file(g, n))
	}
	return r, nil
}

// exists reports whether there is a record of that name, whatever it says.
func (d records) exists(g volume.Group, n volume.Name) (bool, error) {
	_, err := os.Lstat(d.file(g, n))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// write replaces a volume's record so that a crash leaves the old one or the new.
// The last use stays what it was. That of a new record is now, also of one that replaces the tombstone
// of another volume of that name.
func (d records) write(g volume.Group, n volume.Name, r record) error {
	used := d.lastUsed(g, n)
	if old, err := d.read(g, n); err == nil && old.leavesName() {
		used = time.Time{}
	}
	return d.writeUsed(g, n, r, used)
}

// writeUsed is write with the last use given; zero is now.
func (d records) writeUsed(g volume.Group, n volume.Name, r record, used time.Time) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	file := d.file(g, n)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	// A hyphen cannot begin a volume's name, so this is nobody's record.
	tmp := filepath.Join(filepath.Dir(file), "-"+filepath.Base(file))
	if err := durable.WriteFile(tmp, append(b, '\n')); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if !used.IsZero() {
		if err := os.Chtimes(tmp, used, used); err != nil {
			return fmt.Errorf("write record: %w", err)
		}
	}
	if err := os.Rename(tmp, file); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if err := syncDirs(filepath.Dir(file)); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// mark leaves an empty record where a volume has none. It cannot be read, so it counts as
// one of a volume that a pod has had.
func (d records) mark(g volume.Group, n volume.Name) error {
	file := d.file(g, n)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("mark record: %w", err)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("mark record: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close(), syncDirs(filepath.Dir(file))); err != nil {
		return fmt.Errorf("mark record: %w", err)
	}
	return nil
}

// syncDirs makes what happened to the names in a directory last over a power
// cut, and the directory itself: the tags that change next are on another disk,
// and a record that came back from the past would say what is not so any more.
func syncDirs(dir string) error { return durable.Sync(dir, filepath.Dir(dir)) }

// remove forgets a volume. One that has no record is no error.
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

// touch stamps a volume's last use. One without a record has nothing to stamp.
func (d records) touch(g volume.Group, n volume.Name, now time.Time) error {
	if err := os.Chtimes(d.file(g, n), now, now); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("stamp last use: %w", err)
	}
	return nil
}

// touchDurably is touch, and lasts over a power cut.
func (d records) touchDurably(g volume.Group, n volume.Name, now time.Time) error {
	if err := d.touch(g, n, now); err != nil {
		return err
	}
	if err := durable.Sync(d.file(g, n)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("stamp last use: %w", err)
	}
	return nil
}

// lastUsed is when the volume was last mounted or unmounted, zero where this
// node does not know.
func (d records) lastUsed(g volume.Group, n volume.Name) time.Time {
	st, err := os.Stat(d.file(g, n))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime().UTC()
}
