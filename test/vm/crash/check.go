//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/vm/logwrites"
)

// A check boots the node with the disk in the state that a power cut left.
type check struct {
	life    *life
	at      moment
	records string // the directory with the records on the node's own disk; empty: they were lost
	kind    string // which records: none, last or next
	leaked  bool   // the kernel or LVM leaked blocks of the thin pool
	active  bool   // the boot activated the group
	whole   bool   // the file systems' own tools check them, and finally everything is removed
}

const checkDir = "/crash-check"

// newCheck chooses what the log does not determine: whether the boot activates the group, and the state of the
// node's records, which are fsynced on another disk: those of the last mark, those of the next, or none because
// that disk was lost.
func newCheck(l *life, log *logwrites.Log, p logwrites.Point, seed uint64, whole bool) (*check, error) {
	text, ok := log.LastMark(p)
	if !ok {
		return nil, fmt.Errorf("the point %s comes before the first mark", p)
	}
	i, err := l.momentOf(text)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(seed, uint64(p.Base)<<32|uint64(p.End)))
	c := &check{life: l, at: l.moments[i], active: rng.IntN(2) == 0, whole: whole}
	switch kind := rng.IntN(3); {
	case kind == 0:
		c.kind = "none"
	case kind == 1 && i+1 < len(l.moments):
		c.kind, c.records = "next", l.moments[i+1].records
	default:
		c.kind, c.records = "last", c.at.records
	}
	return c, nil
}

func (c *check) String() string {
	s := fmt.Sprintf("last mark %q", c.at.what)
	if c.at.step >= 0 && !c.at.done {
		s += fmt.Sprintf(" during %q", c.life.steps[c.at.step].name)
	}
	return fmt.Sprintf("%s, records %s, activated %t", s, c.kind, c.active)
}

// run boots the node, lets the daemon and kubelet do their part, and checks the result.
func (c *check) run(ctx context.Context) (err error) {
	if err := c.restoreRecords(); err != nil {
		return err
	}
	w, err := newWorld(ctx, checkDir, c.life.door, nil)
	if err != nil {
		return err
	}
	w.calls = c.at.step // the door of the first call differs from point to point
	defer func() { err = errors.Join(err, w.unmountAll(), w.close()) }()
	if c.active {
		// A failure is not a verdict: a volume is activated when it is mounted.
		_, _ = sh("vgchange -q -ay %s", group)
	}
	if err := daemonRound(w); err != nil {
		return fmt.Errorf("the node daemon's round: %w", err)
	}
	want := c.life.promised[c.at.step+1-pending(c.at)]
	if pending(c.at) > 0 {
		s := c.life.steps[c.at.step]
		if err := s.do(w); err != nil {
			return fmt.Errorf("again, %s: %w", s.name, err)
		}
		want = want.clone()
		s.then(want)
		if err := w.unmountAll(); err != nil {
			return err
		}
	}
	for _, p := range want.ordered() {
		if err := c.volume(w, p); err != nil {
			return fmt.Errorf("volume %s: %w", p.spec.Name, err)
		}
	}
	if err := checkList(w, want); err != nil {
		return err
	}
	if err := c.bringBack(w, want); err != nil {
		return err
	}
	if !c.whole {
		return nil
	}
	return c.removeAll(w, want)
}

// pending returns 1 if a step was interrupted and has to be repeated, else 0.
func pending(m moment) int {
	if m.step >= 0 && !m.done {
		return 1
	}
	return 0
}

func (c *check) restoreRecords() error {
	if err := os.RemoveAll(checkDir); err != nil {
		return err
	}
	if c.records == "" {
		return nil
	}
	return copyRecords(c.records, checkDir)
}

// daemonRound is the node daemon's round: it removes doomed volumes and heals damaged ones.
func daemonRound(w *world) error {
	all, err := w.engine.List(w)
	if err != nil {
		return err
	}
	for _, v := range all {
		ctx, cancel := bounded(w)
		ref := node.Ref{Group: v.Group, Name: v.Name, Cluster: v.Cluster, Kind: v.Kind, UUID: v.UUID}
		switch {
		case v.State == volume.Doomed:
			err = w.engine.Remove(ctx, ref)
		case v.State == volume.Creating || v.State == volume.Ready && !v.Active || v.Problem != "":
			err = w.engine.Heal(ctx, ref)
		}
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// volume mounts a ready volume and checks its content.
func (c *check) volume(w *world, p promise) error {
	if p.state != volume.Ready {
		return nil
	}
	if p.spec.Kind == volume.Snapshot {
		return w.lookInto(p)
	}
	if err := w.mount(w.engine, p.spec); err != nil {
		return err
	}
	size, err := w.size(p.spec)
	if err != nil {
		return err
	}
	if size != p.size {
		return fmt.Errorf("it holds %d bytes and %d were promised", int64(size), int64(p.size))
	}
	if p.spec.FSType == volume.Raw {
		if err := checkDevice(w.target(p.spec.Name), size, p.files); err != nil {
			return err
		}
		return w.unmount(p.spec)
	}
	if err := checkFiles(w.target(p.spec.Name), p); err != nil {
		return err
	}
	if p.dataset > 0 {
		set := w.target(p.spec.Name) + "/set"
		if _, err := sh("test -e %s/.flexlvm/complete && diff -r --exclude=.flexlvm %s %s", set, source(p.dataset), set); err != nil {
			return fmt.Errorf("its dataset is not whole: %w", err)
		}
	}
	if err := w.unmount(p.spec); err != nil || !c.whole {
		return err
	}
	look := "xfs_repair -n -P -o bhash=64" // no read-ahead and small caches, which would take seconds
	if p.spec.FSType == volume.Ext4 {
		look = "e2fsck -fn"
	}
	_, err = sh("%s /dev/%s/%s", look, group, p.spec.Name)
	return err
}

// checkList checks that exactly the promised volumes exist, in the promised states: no unknown volume, and no
// remains of one in LVM.
func checkList(w *world, want promises) error {
	all, err := w.engine.List(w)
	if err != nil {
		return err
	}
	names := []string{string(pool), "[" + string(pool) + "_tdata]", "[" + string(pool) + "_tmeta]", "[lvol0_pmspare]"}
	found := promises{}
	for _, v := range all {
		p, ok := want[v.Name]
		switch {
		case !ok:
			return fmt.Errorf("volume %s is %s and should be gone", v.Name, v.State)
		case v.State != p.state:
			return fmt.Errorf("volume %s is %s and it was promised that it is %s", v.Name, v.State, p.state)
		case v.Problem != "" && p.state == volume.Ready:
			return fmt.Errorf("volume %s: %s", v.Name, v.Problem)
		case v.Size != p.size:
			return fmt.Errorf("volume %s is of %d bytes and %d were promised", v.Name, int64(v.Size), int64(p.size))
		case p.fs != "" && v.FS != p.fs:
			return fmt.Errorf("volume %s has file system %s and had %s: it was made anew", v.Name, v.FS, p.fs)
		}
		found[v.Name] = p
	}
	for n, p := range want {
		if _, ok := found[n]; !ok {
			return fmt.Errorf("volume %s is gone and it was promised that it is %s", n, p.state)
		}
		names = append(names, string(n))
	}
	have, err := lvs()
	if err != nil {
		return err
	}
	slices.Sort(names)
	slices.Sort(have)
	if !slices.Equal(names, have) {
		return fmt.Errorf("the group holds %s and should hold %s", strings.Join(have, " "), strings.Join(names, " "))
	}
	return nil
}

// bringBack undeletes the unreferenced and retained volumes, which must be whole.
func (c *check) bringBack(w *world, want promises) error {
	for _, p := range want.ordered() {
		if p.state != volume.Unreferenced && p.state != volume.Retained || p.spec.Kind == volume.Dataset {
			continue
		}
		if err := w.restate(p.spec, volume.Ready); err != nil {
			return fmt.Errorf("undelete volume %s: %w", p.spec.Name, err)
		}
		p.state = volume.Ready
		if err := c.volume(w, p); err != nil {
			return fmt.Errorf("undeleted volume %s: %w", p.spec.Name, err)
		}
	}
	return nil
}

// removeAll removes everything. Nothing may remain in the group or in the thin pool.
func (c *check) removeAll(w *world, want promises) error {
	all := want.ordered()
	slices.SortStableFunc(all, func(a, b promise) int { // snapshots first: their sources cannot be removed before them
		return strings.Compare(string(b.spec.Kind), string(a.spec.Kind))
	})
	for _, p := range all {
		if err := w.release(p.spec, volume.Disposal{Reclaim: volume.ReclaimImmediate, Wipe: volume.WipeNone}); err != nil {
			return fmt.Errorf("release volume %s: %w", p.spec.Name, err)
		}
		if err := w.remove(p.spec); err != nil {
			return fmt.Errorf("remove volume %s: %w", p.spec.Name, err)
		}
	}
	if err := checkList(w, nil); err != nil {
		return err
	}
	return c.emptyPool()
}

// emptyPool checks that the thin pool without volumes holds none that are unknown to LVM, at the latest after the
// next volume was created in it.
//
// Two leaks are only reported, because nothing above the kernel and LVM can help: blocks that the kernel was about
// to write or to discard, until thin_check repairs the pool (seen with Linux 7.3); and a whole volume that is
// removed after a power cut inside an earlier removal: LVM mistakes the pending message that deletes the second
// volume in the pool for the first one's, which was delivered (seen with 2.03.16).
func (c *check) emptyPool() error {
	volumes, err := inPool()
	if err == nil && volumes != "" {
		// LVM has noted that they are to be deleted, and sends that to the pool with the next creation.
		if _, err := sh("lvcreate -q --yes --thin --virtualsize 4m --name next %s/%s && lvremove -q --yes %s/next", group, pool, group); err != nil {
			return err
		}
		volumes, err = inPool()
	}
	if err != nil {
		return err
	}
	if volumes != "" && !c.insideRemoval() {
		return fmt.Errorf("the thin pool holds volumes that LVM does not know of: %s", volumes)
	}
	used, err := sh("lvs --noheadings -o data_percent %s/%s", group, pool)
	c.leaked = used != "0.00"
	return err
}

// insideRemoval reports whether LVM may have been removing a volume.
func (c *check) insideRemoval() bool {
	return pending(c.at) > 0 && strings.HasPrefix(c.life.steps[c.at.step].name, "remove ") && c.at.what != "lvremove"
}

// inPool lists the device numbers of the volumes that the kernel has in the thin pool.
func inPool() (string, error) {
	device, err := sh("lvchange -ay %s/%s && dmsetup ls --target thin-pool | cut -f1", group, pool)
	if err != nil {
		return "", err
	}
	return sh("dmsetup message %[1]s 0 reserve_metadata_snap && thin_ls --no-headers -o DEV -m /dev/mapper/%[2]s_tmeta && dmsetup message %[1]s 0 release_metadata_snap",
		device, volume.DeviceName(group, pool))
}

func quiet() *logrus.Logger {
	log := logrus.New()
	log.SetLevel(logrus.ErrorLevel)
	return log
}
