//go:build linux

// Command crash runs in a virtual node. It records the life of some volumes on the disk below their group. Then it
// cuts the power of that disk at many points: after each flush, after each promise, and in between, losing the
// content of the disk's cache. At each point it restarts the node, and everything promised before the point must
// exist, and nothing else.
//
// It needs four disks: the recorded one, its log, one as large as the first to replay the log onto, and one for the
// changes that a check makes there.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/freeze"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/vm/logwrites"
)

const (
	recordedDisk = "/dev/vda"
	logDisk      = "/dev/vdb"
	replayDisk   = "/dev/vdc"
	changesDisk  = "/dev/vdd"
)

// options are the flags.
type options struct {
	points int
	seed   uint64
	during string
	omit   string
	steps  int
	quiet  bool
	door   string
	fsType volume.FSType
}

func main() {
	freeze.Serve()
	var o options
	flag.IntVar(&o.points, "points", 30, "at how many points power is cut")
	flag.Uint64Var(&o.seed, "seed", 1, "of all that is chosen at random")
	flag.StringVar(&o.during, "during", "", "of these points, take only those in the step of this name: no recording is like another, so a failure is looked for where it was")
	flag.StringVar(&o.omit, "omit", "", "make a mistake that must be found: fsync, or flush, which keeps flushes from the disk")
	flag.IntVar(&o.steps, "steps", 0, "how many steps of the life are recorded; 0: all")
	flag.BoolVar(&o.quiet, "quiet", false, "do not tell of each point")
	flag.StringVar(&o.door, "door", doorBoth, "what mounts volumes: flex, csi, or both in turns")
	flag.Func("fstype", "the file system of volumes that are not datasets: xfs, the default, or ext4", func(text string) (err error) {
		o.fsType, err = volume.ParseFSType("--fstype", text)
		return err
	})
	flag.Parse()
	if err := run(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.omit != "" && o.omit != omitFsync && o.omit != omitFlush {
		return fmt.Errorf("--omit %q is neither %s nor %s", o.omit, omitFsync, omitFlush)
	}
	if o.door != doorFlex && o.door != doorCSI && o.door != doorBoth {
		return fmt.Errorf("--door %q is none of %s, %s and %s", o.door, doorFlex, doorCSI, doorBoth)
	}
	if err := setUpLVM(); err != nil {
		return err
	}
	begun := time.Now()
	life, err := record(ctx, o)
	if err != nil {
		return fmt.Errorf("record a life of volumes: %w", err)
	}
	source, err := os.Open(logDisk)
	if err != nil {
		return err
	}
	log, err := logwrites.Read(source)
	if err != nil {
		return err
	}
	from := slices.IndexFunc(log.Entries, func(e logwrites.Entry) bool { return e.Has(logwrites.Mark) })
	if from < 0 {
		return errors.New("the log holds no mark")
	}
	points := log.Points(from, o.points, rand.New(rand.NewPCG(o.seed, 0)))
	if o.during != "" {
		points = slices.DeleteFunc(points, func(p logwrites.Point) bool { return life.stepAt(log, p) != o.during })
	}
	if len(points) == 0 {
		return fmt.Errorf("none of the points is in a step of the name %q", o.during)
	}
	fmt.Printf("recorded %d steps in %s: %d entries, %d of them durable, %d marks\n", len(life.steps), round(time.Since(begun)),
		len(log.Entries), count(log, logwrites.Flush)+count(log, logwrites.FUA), count(log, logwrites.Mark))
	return cut(ctx, o, life, log, points)
}

// cut cuts the power at these points and reports all failures.
func cut(ctx context.Context, o options, life *life, log *logwrites.Log, points []logwrites.Point) error {
	fmt.Printf("seed %d\n", o.seed)
	begun := time.Now()
	r, err := newReplay(log)
	if err != nil {
		return err
	}
	const wholeEvery = 5
	most := 10 // failures: one cause often fails many points
	if o.omit != "" {
		most = 1
	}
	var failures []error
	torn, leaks := 0, 0
	for i, p := range points {
		c, err := newCheck(life, log, p, o.seed, i%wholeEvery == 0)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := r.to(p); err != nil {
			return fmt.Errorf("replay the log: %w", err)
		}
		err = errors.Join(c.run(ctx), r.drop())
		if p.Torn {
			torn++
		}
		if c.leaked {
			leaks++
		}
		if !o.quiet || err != nil {
			fmt.Printf("point %d/%d %s, %s: %s %s\n", i+1, len(points), p, c, round(time.Since(start)), verdict(err))
		}
		if err == nil {
			continue
		}
		failures = append(failures, fmt.Errorf("at %s (%s): %w", p, c, err))
		if len(failures) == most {
			break
		}
	}
	took := time.Since(begun)
	fmt.Printf("seed %d: %d points, %d of them torn, %d failures, in %s, %s each; at %d LVM or the kernel has leaked blocks of the thin pool\n", o.seed, len(points), torn, len(failures), round(took), round(took/time.Duration(max(1, len(points)))), leaks)
	return errors.Join(failures...)
}

func verdict(err error) string {
	if err == nil {
		return "ok"
	}
	return "FAILED: " + err.Error()
}

func count(l *logwrites.Log, f logwrites.Flags) (n int) {
	for _, e := range l.Entries {
		if e.Has(f) {
			n++
		}
	}
	return n
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }
