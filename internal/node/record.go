package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A record is what this node remembers of a volume that is ready, so that
// mounting it again asks no program. It is a cache: it counts only while the
// device that the kernel shows bears the same UUID, and it is taken away before
// the volume's tags say anything else. Its modification time is the volume's
// last use.
//
// It is good for one thing more: where a record stands and the volume is gone,
// data was lost, and an empty volume must not take its place.
type record struct {
	VolumeUUID string       `json:"volumeUUID"`
	FS         string       `json:"fs"`
	Size       volume.Bytes `json:"size"`
	Namespace  string       `json:"namespace"`
	Cluster    string       `json:"cluster,omitempty"`
	Kind       volume.Kind  `json:"kind"`
}

func newRecord(uuid string, t volume.Tags) record {
	return record{VolumeUUID: uuid, FS: t.FS, Size: t.Size, Namespace: t.Namespace, Cluster: t.Cluster, Kind: t.Kind}
}

func (r record) tags() volume.Tags {
	return volume.Tags{State: volume.Ready, FS: r.FS, Size: r.Size, Namespace: r.Namespace, Cluster: r.Cluster, Kind: r.Kind}
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
	return r, nil
}

func (d records) exists(g volume.Group, n volume.Name) (bool, error) {
	_, err := os.Lstat(d.file(g, n))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// write replaces a volume's record so that a crash leaves the old one or the new.
func (d records) write(g volume.Group, n volume.Name, r record) error {
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
	if err := writeSynced(tmp, append(b, '\n')); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if err := os.Rename(tmp, file); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	if err := syncDirs(filepath.Dir(file)); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// syncDirs makes what happened to the names in a directory last over a power
// cut, and the directory itself: the tags that change next are on another disk,
// and a record that came back from the past would say what is not so any more.
func syncDirs(dir string) error {
	for _, d := range []string{dir, filepath.Dir(dir)} {
		f, err := os.Open(d)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func writeSynced(file string, b []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

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

// lastUsed is when the volume was last mounted or unmounted, zero where this
// node does not know.
func (d records) lastUsed(g volume.Group, n volume.Name) time.Time {
	st, err := os.Stat(d.file(g, n))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime().UTC()
}
