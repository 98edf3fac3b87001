//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/vm/logwrites"
)

// Deliberate mistakes.
const (
	omitFsync = "fsync" // files are promised without an fsync
	omitFlush = "flush" // the disk never receives a flush
)

// A step is one event in a volume's life. If it is interrupted, its initiator (kubelet, the node daemon, the pod)
// repeats it after the boot.
type step struct {
	name string
	do   func(w *world) error
	then func(p promises) // what is promised once do has returned
}

// A moment is a point of the recording at which a mark was set.
type moment struct {
	what    string
	step    int    // the step that is running, or the last one
	done    bool   // the step has returned
	records string // the directory with the records on the node's own disk
}

// A life is a recording.
type life struct {
	door     string // mounts the volumes, before and after the cut
	steps    []step
	promised []promises // before step 0, after it, and so on
	moments  []moment
}

// momentOf returns the index of the moment with this mark, which is the index as text.
func (l *life) momentOf(mark string) (int, error) {
	i, err := strconv.Atoi(mark)
	if err != nil || i >= len(l.moments) {
		return 0, fmt.Errorf("mark %q is none of this recording's", mark)
	}
	return i, nil
}

// stepAt returns the name of the step that is running at a point, or of the last one.
func (l *life) stepAt(log *logwrites.Log, p logwrites.Point) string {
	text, _ := log.LastMark(p)
	i, err := l.momentOf(text)
	if err != nil || l.moments[i].step < 0 {
		return ""
	}
	return l.steps[l.moments[i].step].name
}

// recorder sets marks in the log and keeps the node's records as of each mark.
type recorder struct {
	*life
	world *world
	err   error // the first one
}

// note sets a mark.
func (r *recorder) note(step int, done bool, what string) {
	if r.err != nil {
		return
	}
	m := moment{what: what, step: step, done: done, records: fmt.Sprintf("%s/%d", recordsDir, len(r.moments))}
	r.err = errors.Join(mark(strconv.Itoa(len(r.moments))), copyRecords(r.world.dir, m.records))
	r.moments = append(r.moments, m)
}

// record records the life of volumes on the recorded disk.
func record(ctx context.Context, o options) (*life, error) {
	for _, dir := range []string{recordsDir, lifeDir} {
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
	}
	for _, files := range []int{smallSet, largeSet} {
		if err := makeSource(files); err != nil {
			return nil, err
		}
	}
	if err := startRecording(); err != nil {
		return nil, err
	}
	if o.omit == omitFlush {
		if err := swallowFlushes(); err != nil {
			return nil, err
		}
	}
	if err := makeGroup(ctx); err != nil {
		return nil, err
	}
	r := &recorder{life: &life{door: o.door, steps: steps(o.fsType), promised: []promises{{}}}}
	if o.steps > 0 {
		r.steps = r.steps[:o.steps]
	}
	current := 0
	w, err := newWorld(ctx, lifeDir, o.door, func(what string) { r.note(current, false, what) })
	if err != nil {
		return nil, err
	}
	w.omit, r.world = o.omit, w
	r.note(-1, true, "group made")
	for i, s := range r.steps {
		current = i
		start := time.Now()
		r.note(i, false, "begin "+s.name)
		if err := s.do(w); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		r.note(i, true, s.name)
		p := r.promised[i].clone()
		s.then(p)
		if err := w.rememberFilesystems(p); err != nil {
			return nil, err
		}
		r.promised = append(r.promised, p)
		if r.err != nil {
			return nil, r.err
		}
		fmt.Printf("%s took %s\n", s.name, round(time.Since(start)))
	}
	return r.life, errors.Join(w.unmountAll(), w.close(), removeDisk())
}

// makeGroup creates the group with the command of `flexlvm vg create`, which itself refuses a device-mapper disk.
func makeGroup(ctx context.Context) error {
	host := command.New("", quiet()).Unkillable
	g := lvm.NewGroup{Name: group, Devices: []string{diskPath}, MetadataSize: metadataSize}
	argv := g.Argv()
	if err := host.CommandContext(ctx, argv[0], argv[1:]...).Run(); err != nil {
		return err
	}
	_, err := lvm.New(host, lock.Dir("/run/lock/crash")).CreateThinPool(ctx, lvm.NewThinPool{Group: group, Name: pool, Size: volume.GiB})
	return err
}

// rememberFilesystems records the volumes' file systems, which must never change.
func (w *world) rememberFilesystems(p promises) error {
	all, err := w.engine.List(w)
	if err != nil {
		return err
	}
	for _, v := range all {
		if _, ok := p[v.Name]; ok {
			p.change(v.Name, func(p *promise) { p.fs = v.FS })
		}
	}
	return nil
}

const (
	// lifeDir holds the records and pods of the recorded world.
	lifeDir = "/crash-life"
	// recordsDir holds the node's records as of each moment.
	recordsDir = "/crash-records"
)

// copyRecords copies a world's records to or from another directory.
func copyRecords(from, to string) error {
	if err := os.MkdirAll(from+"/state", 0o755); err != nil {
		return err
	}
	return os.CopyFS(to+"/state", os.DirFS(from+"/state"))
}

// Numbers of files in the datasets.
const (
	smallSet = 5
	largeSet = 40
)

const claimSize = 16 * volume.MiB

// grownSize returns the size that volumes grow to. It exceeds the minimum size of a file system's device, so
// growing runs every step.
func grownSize(fsType volume.FSType) volume.Bytes {
	if fsType == volume.Ext4 {
		return 48 * volume.MiB
	}
	return 384 * volume.MiB
}

func specOf(n volume.Name, layout volume.Layout) volume.Spec {
	s := volume.Spec{
		Group: group, Name: n, Size: claimSize, Layout: layout,
		Kind: volume.Claim, Cluster: cluster, Namespace: "default",
	}
	if layout == volume.Thin {
		s.ThinPool = pool
	}
	return s
}

// steps returns the life: volumes are created, written, grown, snapshotted, copied, released, undeleted, evicted,
// loaded, loaded again under the same name, retained and forgotten. The life of a raw block volume follows.
func steps(fsType volume.FSType) []step {
	linear, thin := specOf("linear", volume.Linear), specOf("thin", volume.Thin)
	clone, set := specOf("clone", volume.Thin), specOf("set", volume.Linear)
	grown := grownSize(fsType)
	clone.Size, clone.CloneOf = grown, thin.Name
	set.Kind, set.Size = volume.Dataset, 32*volume.MiB
	shot, thinShot := snapshotOf(linear, "shot"), snapshotOf(thin, "thinshot")
	restored := specOf("restored", volume.Linear)
	restored.Size, restored.CloneOf = grown, shot.Name
	for _, s := range []*volume.Spec{&linear, &thin, &clone, &shot, &thinShot, &restored} {
		s.FSType = fsType
	}
	lazily := volume.Disposal{Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone}
	wiped := volume.Disposal{Reclaim: volume.ReclaimImmediate, Wipe: volume.WipeDiscard}
	var restore []step
	if fsType == volume.Ext4 { // a copy of XFS's minimum size takes longer than all the rest
		restore = []step{fullCopyStep(restored), removeAtOnceStep(restored)}
	}
	return slices.Concat([]step{
		mountStep(linear),
		writeStep(linear, "db", 2<<20),
		mountBehindStep(thin),
		writeStep(thin, "db", 1<<20),
		settleStep(thin),
		noiseStep(linear),
		expandStep(linear, grown),
		writeStep(linear, "wal", 3<<20),
		groupStep([]volume.Spec{linear, thin}, shot, thinShot),
		writeStep(linear, "after", 2<<20),
		expandStep(thin, grown),
		cloneStep(clone),
		writeStep(clone, "own", 1<<20),
		writeStep(thin, "later", 1<<20),
		noiseStep(thin),
		removeAtOnceStep(thinShot),
		releaseStep(linear, lazily),
	}, restore, []step{
		releaseStep(shot, wiped),
		removeStep(shot),
		undeleteStep(linear),
		releaseStep(thin, wiped),
		removeStep(thin),
		mountStep(set),
		fetchStep(set, largeSet),
		releaseStep(set, lazily),
		removeStep(set),
		mountStep(set),
		fetchStep(set, smallSet),
		retainStep(clone),
		forgetStep(clone),
		removeStep(clone),
		releaseStep(linear, wiped),
		removeStep(linear),
	}, deviceSteps())
}

// snapshotOf returns the spec of a snapshot of a volume.
func snapshotOf(of volume.Spec, n volume.Name) volume.Spec {
	s := of
	s.Name, s.Kind, s.CloneOf = n, volume.Snapshot, of.Name
	if of.Layout != volume.Thin {
		s.Reserve = 50
	}
	return s
}
