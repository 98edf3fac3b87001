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
	"github.com/flexlvm/flexlvm/internal/volume"
)

// recordFile holds records as JSON. It lies beside the marks, so that it stays with the export wherever
// that is mounted.
const recordFile = ".projects"

var recordPath = path.Join(nfsmark.Dir, recordFile)

const (
	// maxRecords is the maximum number of directories of an export that have projects.
	maxRecords = 1 << 15
	// maxContent exceeds the size of that many records, 325 bytes each.
	maxContent = 16 * volume.MiB
)

// records holds each directory's project, by PersistentVolume. A project is recorded before it is used
// and until its limit is lifted, so that none is ever assigned to two directories.
type records map[string]record

type record struct {
	Directory string        `json:"directory"`
	Project   quota.Project `json:"project"`
}

// firstProject is the first project that flexlvm assigns; administrators usually begin at 1.
const firstProject quota.Project = 1 << 30

func readRecords(root *os.Root) (records, error) {
	content, err := nfsmark.ReadFile(root, recordFile, maxContent)
	if errors.Is(err, fs.ErrNotExist) {
		return records{}, nil
	}
	if err != nil {
		return nil, err
	}
	var all records
	err = json.Unmarshal(content, &all)
	if err == nil && all == nil {
		err = errors.New("it says nothing")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w; which projects are flexlvm's is not known: restore the file, or move it away and set quotas by hand", recordPath, err)
	}
	owner := map[quota.Project]string{}
	for _, v := range slices.Sorted(maps.Keys(all)) {
		r := all[v]
		if r.Project < firstProject {
			return nil, fmt.Errorf("read %s: project %d of %q is less than %d, so flexlvm did not choose it; correct it by hand", recordPath, r.Project, v, firstProject)
		}
		if other, twice := owner[r.Project]; twice {
			return nil, fmt.Errorf("read %s: project %d of %q is that of %q as well; correct it by hand", recordPath, r.Project, v, other)
		}
		if err := nfsmark.CheckDirectory("directory", r.Directory, v); err != nil {
			return nil, fmt.Errorf("read %s: %w", recordPath, err)
		}
		owner[r.Project] = v
	}
	return all, nil
}

// writeRecords replaces the records. After an error, the file has either its old or its new content.
func (p *pass) writeRecords(all records) (err error) {
	if len(all) == 0 {
		err = nfsmark.Remove(p.root, recordFile)
	} else {
		err = p.write(p.root, recordFile, all)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w; it is retried", recordPath, err)
	}
	p.records = all
	return nil
}

// assign chooses a project for each directory that has none yet, and records it. If it fails,
// directories that have a project keep it.
func (p *pass) assign() {
	taken := map[quota.Project]bool{}
	for project := range p.all {
		taken[project] = true
	}
	for project := range p.others {
		taken[project] = true
	}
	for _, r := range p.records {
		taken[r.Project] = true
	}
	all, next := maps.Clone(p.records), firstProject
	for _, m := range p.asked {
		if _, has := all[m.PersistentVolume]; has {
			continue
		}
		if p.noProject == nil && len(all) >= maxRecords {
			p.noProject = fmt.Errorf("%s already records the projects of %d volumes, the most that it can hold", recordPath, len(all))
		}
		if p.noProject == nil {
			next, p.noProject = lowestFree(next, math.MaxUint32, taken)
		}
		if p.noProject != nil {
			break
		}
		all[m.PersistentVolume] = record{Directory: m.Directory, Project: next}
		taken[next] = true
	}
	if len(all) == len(p.records) {
		return
	}
	if err := p.writeRecords(all); err != nil {
		p.noProject, p.inDoubt = err, all
		return
	}
	p.after("write records")
}

// lowestFree returns the lowest project between from and to, inclusive, that is not taken.
func lowestFree(from, to quota.Project, taken map[quota.Project]bool) (quota.Project, error) {
	for p := from; ; p++ {
		if !taken[p] {
			return p, nil
		}
		if p == to {
			return 0, fmt.Errorf("all from %d to %d are in use in this file system (xfs_quota -x -c 'report -p')", firstProject, to)
		}
	}
}

// release lifts the limits of directories that are gone: their mark is removed, they do not exist, and
// their project is empty. An archived directory keeps its limit, and its project is in use until it is
// removed.
func (p *pass) release() error {
	all := maps.Clone(p.records)
	p.counted = false
	for v, r := range p.records {
		if p.marked[v] {
			continue
		}
		if p.all[r.Project].Inodes > 0 {
			p.counted = true
			continue
		}
		if _, err := p.root.Lstat(r.Directory); err == nil {
			continue // somebody has removed only the mark
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if p.all[r.Project].Limit != (quota.Limit{}) {
			if err := p.quotas.set(r.Project, quota.Limit{}); err != nil {
				return err
			}
			p.after("lift limit")
		}
		delete(all, v)
	}
	if len(all) == len(p.records) {
		return nil
	}
	if err := p.writeRecords(all); err != nil {
		return err
	}
	p.after("remove record")
	return nil
}
