package nfsquota

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"slices"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/quota"
)

// recordFile lies beside the marks, so that it comes along wherever the export is mounted, and
// holds records as JSON.
const recordFile = ".projects"

// records says which project is whose, by PersistentVolume. A project is written down before it
// is used and until its limit is lifted, so that none is ever given to two directories.
type records map[string]record

type record struct {
	Directory string        `json:"directory"`
	Project   quota.Project `json:"project"`
}

// firstProject is where the projects begin that flexlvm gives to directories; people begin at 1.
const firstProject quota.Project = 1 << 30

func readRecords(root *os.Root) (records, error) {
	name := path.Join(nfsmark.Dir, recordFile)
	content, err := root.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return records{}, nil
	}
	if err != nil {
		return nil, err
	}
	var all records
	if err := json.Unmarshal(content, &all); err != nil {
		return nil, fmt.Errorf("read %s: %w; which projects are flexlvm's is not known: restore the file, or move it away and set quotas by hand", name, err)
	}
	owner := map[quota.Project]string{}
	for _, v := range slices.Sorted(maps.Keys(all)) {
		r := all[v]
		if other, twice := owner[r.Project]; twice || r.Project == 0 {
			return nil, fmt.Errorf("read %s: project %d of %s is 0 or that of %s as well; correct it by hand", name, r.Project, v, other)
		}
		if err := nfsmark.CheckDirectory("directory", r.Directory, v); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		owner[r.Project] = v
	}
	return all, nil
}

func (l *look) writeRecords() error {
	if len(l.records) == 0 {
		return nfsmark.Remove(l.root, recordFile)
	}
	return nfsmark.WriteJSON(l.root, recordFile, l.records)
}

// assign chooses a project for each directory that has none yet, and writes it down.
func (l *look) assign() error {
	next := firstProject - 1
	for id := range l.all {
		next = max(next, id)
	}
	for _, r := range l.records {
		next = max(next, r.Project)
	}
	changed := false
	for _, m := range l.asked {
		if _, has := l.records[m.PersistentVolume]; has {
			continue
		}
		if next == math.MaxUint32 {
			return fmt.Errorf("choose a project: the highest, %d, is in use in this file system; free it (xfs_quota -x -c 'report -p')", next)
		}
		next++
		l.records[m.PersistentVolume] = record{Directory: m.Directory, Project: next}
		changed = true
	}
	if !changed {
		return nil
	}
	if err := l.writeRecords(); err != nil {
		return err
	}
	l.after("write records")
	return nil
}

// release lifts the limits of directories that are gone, or archived: those that have no mark any
// more, and are not in their place. What an archived directory has keeps its project, which is
// therefore in use until it is removed.
func (l *look) release() error {
	changed := false
	for v, r := range l.records {
		if l.marked[v] {
			continue
		}
		if _, err := l.root.Lstat(r.Directory); err == nil {
			continue // somebody has removed the mark alone
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if l.all[r.Project].Limit != (quota.Limit{}) {
			if err := l.quotas.set(r.Project, quota.Limit{}); err != nil {
				return err
			}
			l.after("lift limit")
		}
		delete(l.records, v)
		changed = true
	}
	if !changed {
		return nil
	}
	if err := l.writeRecords(); err != nil {
		return err
	}
	l.after("remove record")
	return nil
}
