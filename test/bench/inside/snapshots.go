package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/bench/figure"
)

const (
	thinGroup, thinPool = "thin", "thinpool"
	// manyVolumes is the number of volumes that are snapshotted and restored, one after the other.
	manyVolumes = 100
	smallSize   = 16 * volume.MiB
)

// A snapshotBench is a node with a group for thin volumes and one for others.
type snapshotBench struct {
	engine *node.Engine
	rounds int
}

// snapshots prints the times of taking and restoring snapshots, compared with LVM's own commands, and the cost of a
// snapshot and of encryption for a writer.
func snapshots(rounds string) error {
	var b snapshotBench
	var err error
	if b.rounds, err = strconv.Atoi(rounds); err != nil {
		return fmt.Errorf("read the number of rounds: %w", err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	if b.engine, err = node.New(node.Config{}, command.New("", log)); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"vgcreate", "--yes", group, "/dev/vda"},
		{"vgcreate", "--yes", thinGroup, "/dev/vdb"},
		{"lvcreate", "--yes", "--quiet", "--thin", "--zero", "y", "--errorwhenfull", "y", "--addtag", "flexlvm", "--addtag", "flexlvm.kind=pool",
			"--size", "7g", "--thinpool", thinPool, thinGroup},
	} {
		if err := figure.Command(args...)(); err != nil {
			return err
		}
	}
	fmt.Println(figure.LineHeader)
	for _, take := range []func() error{b.writers, b.gigabyte} {
		if err := take(); err != nil {
			return err
		}
	}
	return b.hundred()
}

func (b *snapshotBench) spec(name string, size volume.Bytes, thin bool) volume.Spec {
	s := volume.Spec{
		Group: group, Name: volume.Name(name), Size: size, Layout: volume.Linear, Kind: volume.Claim, Namespace: "default", Cluster: cluster,
	}
	if thin {
		s.Group, s.Layout, s.ThinPool = thinGroup, volume.Thin, thinPool
	}
	return s
}

// of returns the spec of a snapshot of a volume, or of a volume that is restored from one.
func of(s volume.Spec, name string, kind volume.Kind) volume.Spec {
	s.CloneOf, s.Name, s.Kind = s.Name, volume.Name(name), kind
	return s
}

func (b *snapshotBench) mount(s volume.Spec) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	return b.engine.Mount(context.Background(), s, node.MountRequest{Target: target})
}

// fill mounts a volume for the first time, fills it, and unmounts it.
func (b *snapshotBench) fill(s volume.Spec) error {
	if err := b.mount(s); err != nil {
		return err
	}
	return figure.Command("sh", "-c", fmt.Sprintf("dd if=/dev/urandom of=%s/data bs=1M count=%d conv=fsync && umount %[1]s", target, int64(s.Size/volume.MiB)-1))()
}

func remove(s volume.Spec) error {
	if err := os.RemoveAll("/var/lib/flexlvm/volumes/" + string(s.Group) + "/" + string(s.Name)); err != nil {
		return err
	}
	return figure.Command("lvremove", "--yes", string(s.Group)+"/"+string(s.Name))()
}

// gigabyte measures a full volume of 1 GiB.
func (b *snapshotBench) gigabyte() error {
	for _, thin := range []bool{true, false} {
		s := b.spec("pvc-full", volume.GiB, thin)
		if err := b.fill(s); err != nil {
			return err
		}
		if err := b.takeOne(s, thin); err != nil {
			return err
		}
		if err := b.restoreOne(s, thin); err != nil {
			return err
		}
		if err := remove(s); err != nil {
			return err
		}
	}
	return nil
}

// takeOne compares taking a snapshot with LVM's command.
func (b *snapshotBench) takeOne(s volume.Spec, thin bool) error {
	snap := of(s, "snap-1", volume.Snapshot)
	name, args := "a copy-on-write snapshot of 1 GiB ÷ `lvcreate -s`", []string{"--chunksize", "64k", "--size", fmt.Sprintf("%db", int64(snap.DeviceSize()))}
	if thin {
		name, args = "a thin snapshot of 1 GiB ÷ `lvcreate -s`", nil
	}
	bare := append(append([]string{"lvcreate", "--yes", "--quiet", "--snapshot", "--name", string(snap.Name)}, args...), string(s.Group)+"/"+string(s.Name))
	f, err := figure.Compare(name, b.rounds, 0,
		figure.Side{Run: func() error { return b.take(snap) }, After: func() error { return remove(snap) }},
		figure.Side{Run: figure.Command(bare...), After: func() error { return remove(snap) }})
	if err == nil {
		fmt.Println(f.Line())
	}
	return err
}

func (b *snapshotBench) take(snap volume.Spec) error {
	_, err := b.engine.MakeSnapshot(context.Background(), node.SnapshotRequest{Spec: snap}, func(context.Context) error { return nil })
	return err
}

// restoreOne compares a thick restore, up to the first mount, with copying the bytes, and a thin one with the first
// mount of a new volume.
func (b *snapshotBench) restoreOne(s volume.Spec, thin bool) error {
	snap := of(s, "snap-1", volume.Snapshot)
	if err := b.take(snap); err != nil {
		return err
	}
	restored, plain := of(snap, "pvc-restored", volume.Claim), b.spec("pvc-new", s.Size, thin)
	name, theirs := "restoring it, to its first mount ÷ a new volume, to its first mount", figure.Side{
		Run: func() error { return b.mount(plain) }, After: func() error { return b.end(plain) },
	}
	if !thin {
		to := string(s.Group) + "/bare"
		name = "restoring it by a full copy, to its first mount ÷ `lvcreate && dd`"
		theirs = figure.Side{
			Run: figure.Command("sh", "-c", fmt.Sprintf("lvcreate --yes --quiet --name bare --size %db %s && dd if=/dev/%[2]s/%s of=/dev/%s bs=1M oflag=nocache conv=fsync",
				int64(s.DeviceSize()), s.Group, snap.Name, to)),
			After: figure.Command("lvremove", "--yes", to),
		}
	}
	f, err := figure.Compare(name, b.rounds, 0, figure.Side{
		Run: func() error { return b.restore(restored) }, After: func() error { return b.end(restored) },
	}, theirs)
	if err != nil {
		return err
	}
	fmt.Println(f.Line())
	return remove(snap)
}

// end unmounts and removes a volume.
func (b *snapshotBench) end(s volume.Spec) error {
	if err := unmount(); err != nil {
		return err
	}
	return remove(s)
}

// hundred measures a hundred small volumes, one after the other. They have ext4, because XFS needs a device of at
// least 300 MiB.
func (b *snapshotBench) hundred() error {
	fmt.Printf("\n| %d volumes of %s with ext4, one after the other | all | median of the first ten | of the last ten |\n|---|---|---|---|\n", manyVolumes, smallSize)
	for _, thin := range []bool{true, false} {
		for _, step := range []struct {
			name string // empty: not printed
			do   func(s, snap, restored volume.Spec) error
		}{
			{"", func(s, _, _ volume.Spec) error { return b.makeOnly(s) }},
			{"taken", func(_, snap, _ volume.Spec) error { return b.take(snap) }},
			{"restored, to the first mount", func(_, _, restored volume.Spec) error { return b.restore(restored) }},
		} {
			times, err := b.each(thin, step.do)
			if err != nil {
				return fmt.Errorf("a hundred volumes: %w", err)
			}
			if step.name != "" {
				var all time.Duration
				for _, d := range times {
					all += d
				}
				fmt.Printf("| %s %s | %s | %s | %s |\n", kindOf(thin), step.name, all.Round(100*time.Millisecond),
					figure.Median(times[:10]).Round(time.Millisecond), figure.Median(times[len(times)-10:]).Round(time.Millisecond))
			}
		}
	}
	return nil
}

func kindOf(thin bool) string {
	if thin {
		return "thin snapshots"
	}
	return "copy-on-write snapshots"
}

// each calls do for each volume, its snapshot, and the volume restored from that, and returns the times. Removing
// the restored volume again is not timed.
func (b *snapshotBench) each(thin bool, do func(s, snap, restored volume.Spec) error) (times []time.Duration, err error) {
	for i := range manyVolumes {
		s := b.spec("pvc-"+strconv.Itoa(i), smallSize, thin)
		s.FSType = volume.Ext4
		snap := of(s, "snap-"+strconv.Itoa(i), volume.Snapshot)
		restored := of(snap, "pvc-restored", volume.Claim)
		start := time.Now()
		if err := do(s, snap, restored); err != nil {
			return nil, err
		}
		times = append(times, time.Since(start))
		if _, err := os.Stat("/dev/" + string(s.Group) + "/" + string(restored.Name)); err == nil {
			if err := b.end(restored); err != nil {
				return nil, err
			}
		}
	}
	return times, nil
}

func (b *snapshotBench) makeOnly(s volume.Spec) error {
	if err := b.mount(s); err != nil {
		return err
	}
	return unmount()
}

// restore mounts a volume that is restored from a snapshot for the first time.
func (b *snapshotBench) restore(s volume.Spec) error {
	if s.Layout != volume.Thin { // as the node daemon does
		if err := b.engine.CreateCloneAhead(context.Background(), s); err != nil {
			return err
		}
	}
	return b.mount(s)
}
