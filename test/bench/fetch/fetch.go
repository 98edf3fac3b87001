// Package fetch measures the loader: the real program compared with rclone, s5cmd, aws s3 sync and a plain copy,
// from a real S3 server on the same machine.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/flexlvm/flexlvm/test/s3"
)

// Config configures a measurement.
type Config struct {
	// Loader is the path of the loader.
	Loader string
	// Dir is a folder for the server's data and for the fetched files, so that both are on one file system. It
	// needs about 20 GiB, and the caller removes it.
	Dir string
	// Quarter reduces the bytes or the number of objects to a quarter.
	Quarter bool
	// Only, if set, is the size of the objects to fetch, as named in the table: 16 KiB, 1 MiB or 4 GiB (1 GiB with
	// Quarter).
	Only string
	// Rounds is how often each side runs, except those that run once, for comparison only.
	Rounds int
	Log    io.Writer
}

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// A set is the objects of one size, in a bucket of their own.
type set struct {
	name    string
	objects int
	size    int64
	// checksummed: the server has their CRC64NVME; otherwise only the MD5.
	checksummed bool
	// targets are the throughput targets, as multiples of the other sides' throughput.
	targets map[string]float64
}

func (s set) bucket() string {
	if s.checksummed {
		return fmt.Sprintf("crc-%d", s.size)
	}
	return fmt.Sprintf("md5-%d", s.size)
}

func (s set) bytes() int64 { return int64(s.objects) * s.size }

func (s set) check() string {
	if s.checksummed {
		return "crc64nvme"
	}
	return "md5"
}

// small reports whether the set's files are kept until the end: they are many, and take little space.
func (s set) small() bool { return s.size < mib }

// sets returns the sets to measure.
func (c Config) sets() []set {
	divide := 1
	if c.Quarter {
		divide = 4
	}
	sizes := []set{
		{name: fmt.Sprintf("%d × 16 KiB", 20000/divide), objects: 20000 / divide, size: 16 * kib, targets: map[string]float64{rclone: 1.5, s5cmd: 1.2}},
		{name: fmt.Sprintf("%d × 1 MiB", 1000/divide), objects: 1000 / divide, size: mib, targets: map[string]float64{rclone: 2.2}},
		{name: fmt.Sprintf("1 × %d GiB", 4/divide), objects: 1, size: int64(4 * gib / divide), targets: map[string]float64{rclone: 1.2}},
	}
	var all []set
	for _, s := range sizes {
		checksummed, plain := s, s
		checksummed.checksummed = true
		if s.objects > 1 {
			plain.targets = nil
		}
		all = append(all, checksummed, plain)
	}
	return all
}

// Run measures, and returns the lines of tables in Markdown.
func Run(ctx context.Context, cfg Config) (lines []string, err error) {
	server, err := s3.Start(ctx, s3.Config{Dir: filepath.Join(cfg.Dir, "server"), Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	sides, err := findSides(ctx, cfg, server)
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, s := range cfg.sets() {
		if cfg.Only != "" && !strings.HasSuffix(s.name, "× "+cfg.Only) {
			continue
		}
		began := time.Now()
		if err := fill(ctx, server, s); err != nil {
			return nil, err
		}
		fmt.Fprintf(cfg.Log, "%s, %s: uploaded in %.0f s\n", s.name, s.check(), time.Since(began).Seconds())
		r, err := cfg.measure(ctx, s, sides, server)
		if err != nil {
			return nil, err
		}
		rows = append(rows, r)
		if err := s.leave(filepath.Join(cfg.Dir, "server/data", s.bucket())); err != nil {
			return nil, err
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("there are no objects of %q", cfg.Only)
	}
	return table(rows), nil
}

// fill uploads the objects of a set, several in parallel.
func fill(ctx context.Context, server *s3.Server, s set) error {
	if err := server.MakeBucket(ctx, s.bucket(), false); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for i := range s.objects {
		group.Go(func() error {
			var seed [32]byte
			seed[0], seed[1], seed[2] = byte(i), byte(i>>8), byte(i>>16)
			content := io.LimitReader(rand.NewChaCha8(seed), s.size)
			// A hundred per folder, as in typical data sets.
			key := fmt.Sprintf("part-%03d/%05d.bin", i/100, i)
			return server.Upload(ctx, s.bucket(), key, content, s.size, s.checksummed)
		})
	}
	return group.Wait()
}

// measure has the sides fetch the set in turns, each first in another round.
func (c Config) measure(ctx context.Context, s set, sides []side, server *s3.Server) (row, error) {
	r := row{set: s, runs: map[string][]usage{}}
	for round := range c.Rounds {
		for i := range sides {
			one := sides[(round+i)%len(sides)]
			if !s.checksummed && !one.verifies || one.once && round > 0 {
				continue // without checksums its work is the same, or it runs once, for comparison only
			}
			before, err := server.CPU()
			if err != nil {
				return r, err
			}
			u, err := c.once(ctx, s, one, round)
			if err != nil {
				return r, fmt.Errorf("%s fetches %s: %w", one.name, s.name, err)
			}
			after, err := server.CPU()
			if err != nil {
				return r, err
			}
			u.server = after - before
			fmt.Fprintf(c.Log, "%s, %s: %s\n", s.name, one.name, u)
			r.runs[one.name] = append(r.runs[one.name], u)
		}
	}
	return r, nil
}

// once has one side fetch the set into an empty folder, with the whole set in the server's page cache and no dirty
// pages.
func (c Config) once(ctx context.Context, s set, one side, round int) (usage, error) {
	from := filepath.Join(c.Dir, "server/data", s.bucket())
	dest := filepath.Join(c.Dir, fmt.Sprintf("%s-%s-%d", s.bucket(), strings.ReplaceAll(one.name, " ", "-"), round))
	if err := readAll(from); err != nil {
		return usage{}, err
	}
	if err := os.Mkdir(dest, 0o755); err != nil {
		return usage{}, err
	}
	if err := quiet(ctx); err != nil {
		return usage{}, err
	}
	u, err := one.run(ctx, s, from, dest)
	if err == nil {
		err = s.verify(dest)
	}
	return u, errors.Join(err, s.leave(dest))
}
