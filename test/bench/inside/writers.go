package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/bench/figure"
)

// writtenSize is the size of the devices that fio writes to.
const writtenSize = 256 * volume.MiB

// A work is a fixed workload of fio, so that its times can be compared.
type work struct {
	name string
	args []string
}

var works = []work{
	{"4 KiB at random, one at a time", []string{"--rw=randwrite", "--bs=4k", "--io_size=32m"}},
	{"1 MiB in sequence", []string{"--rw=write", "--bs=1m"}},
}

// A written device, with steps before and after each run that are not timed.
type written struct {
	path          string
	before, after func() error
}

// writers compares writing to a volume with writing to a bare logical volume, with fio and direct I/O.
func (b *snapshotBench) writers() error {
	raw, encrypted := b.spec("pvc-raw", writtenSize, false), b.spec("pvc-encrypted", writtenSize, false)
	raw.FSType, encrypted.FSType, encrypted.Encrypted = volume.Raw, volume.Raw, true
	ours := map[string]written{}
	for _, s := range []volume.Spec{raw, encrypted} {
		path, err := b.handOut(s)
		if err != nil {
			return err
		}
		ours[string(s.Name)] = written{path: path}
	}
	bare, err := bareVolume(group)
	if err != nil {
		return err
	}
	thin, err := bareVolume(thinGroup, "--thinpool", thinPool)
	if err != nil {
		return err
	}
	for _, side := range []struct {
		name         string
		ours, theirs written
	}{
		{"a raw block volume", ours["pvc-raw"], bare},
		{"an encrypted raw block volume", ours["pvc-encrypted"], bare},
		{"a logical volume with a new copy-on-write snapshot", bare.snapshotted("--chunksize", "64k", "--size", "300m"), bare},
		{"a thin one with a new snapshot", thin.snapshotted(), thin},
	} {
		for _, w := range works {
			f, err := w.compare(side.name+", "+w.name, b.rounds, side.ours, side.theirs)
			if err != nil {
				return err
			}
			fmt.Println(f.Line())
		}
	}
	for _, d := range ours {
		if err := unix.Unmount(d.path, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", d.path, err)
		}
	}
	if err := b.engine.CloseUnused(context.Background()); err != nil {
		return err
	}
	return figure.Command("lvremove", "--yes", group+"/bare", thinGroup+"/bare", group+"/pvc-raw", group+"/pvc-encrypted")()
}

// handOut creates and mounts a raw block volume, and returns the path of its device.
func (b *snapshotBench) handOut(s volume.Spec) (string, error) {
	key, err := luks.NewKey([]byte("the key of a volume that the bench writes to"))
	if err != nil {
		return "", err
	}
	path := "/mnt/" + string(s.Name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return "", err
	}
	return path, b.engine.Mount(context.Background(), s, node.MountRequest{Target: path, Key: key})
}

// bareVolume creates a logical volume and writes all of its blocks.
func bareVolume(group string, how ...string) (written, error) {
	size := []string{"--size", fmt.Sprintf("%db", int64(writtenSize))}
	if len(how) > 0 {
		size[0] = "--virtualsize"
	}
	args := append(append([]string{"lvcreate", "--yes", "--quiet", "--name", "bare"}, size...), how...)
	if err := figure.Command(append(args, group)...)(); err != nil {
		return written{}, err
	}
	path := "/dev/" + group + "/bare"
	return written{path: path}, figure.Command("dd", "if=/dev/zero", "of="+path, "bs=1M", "oflag=direct", fmt.Sprintf("count=%d", int64(writtenSize/volume.MiB)))()
}

// snapshotted returns the bare volume with a snapshot taken before each run.
func (w written) snapshotted(how ...string) written {
	take := append([]string{"lvcreate", "--yes", "--quiet", "--snapshot", "--name", "bare-snapshot"}, how...)
	w.before = figure.Command(append(take, w.path)...)
	w.after = figure.Command("lvremove", "--yes", w.path+"-snapshot")
	return w
}

// compare runs the work on both in turns, each first in every other round; the first round is a warm-up.
func (w work) compare(name string, rounds int, ours, theirs written) (figure.Figure, error) {
	times, sides := [2][]time.Duration{}, [2]written{ours, theirs}
	for i := range rounds + 1 {
		for j := range sides {
			k := (i + j) % 2
			took, err := w.once(sides[k])
			if err != nil {
				return figure.Figure{}, fmt.Errorf("%s: %w", name, err)
			}
			if i > 0 {
				times[k] = append(times[k], took)
			}
		}
	}
	return figure.Figure{Name: name, Ours: figure.Median(times[0]), Theirs: figure.Median(times[1]), Rounds: rounds}, nil
}

func (w work) once(d written) (time.Duration, error) {
	if d.before != nil {
		if err := d.before(); err != nil {
			return 0, err
		}
	}
	took, err := w.run(d.path)
	if err == nil && d.after != nil {
		err = d.after()
	}
	return took, err
}

// run returns how long fio wrote, according to its report, which excludes its start and end.
func (w work) run(path string) (time.Duration, error) {
	args := append([]string{
		"--library-path", "/fio", "/fio/fio", "--name=writer", "--filename=" + path, "--size=" + fmt.Sprint(int64(writtenSize)),
		"--direct=1", "--ioengine=psync", "--end_fsync=1", "--thread", "--output-format=json",
	}, w.args...)
	out, err := exec.Command("/fio/loader", args...).Output()
	if err != nil {
		return 0, fmt.Errorf("fio %v: %w: %s", args, err, out)
	}
	var report struct {
		Jobs []struct {
			Write struct {
				Runtime int64 `json:"runtime"` // ms
			} `json:"write"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal(out, &report); err != nil || len(report.Jobs) != 1 {
		return 0, fmt.Errorf("read the report of fio: %w: %s", err, out)
	}
	return time.Duration(report.Jobs[0].Write.Runtime) * time.Millisecond, nil
}
