package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/test/bench/figure"
	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/s3"
	"github.com/flexlvm/flexlvm/test/vm"
)

// side is a way to copy a bucket into a folder.
type side struct {
	name string
	// verifies: it verifies the content against the server's checksums.
	verifies bool
	// once: it runs once per set, because its results are far from the others'.
	once bool
	env  []string
	// argv is the command; from is the bucket's folder on the server's disk.
	argv func(s set, from, dest string) []string
}

// The names of the sides.
const (
	ours   = "fetch"
	rclone = "rclone"
	s5cmd  = "s5cmd"
	aws    = "aws s3 sync"
	plain  = "cp"
)

// findSides returns the sides. It builds and installs missing programs.
func findSides(ctx context.Context, cfg Config, server *s3.Server) ([]side, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return nil, err
	}
	programs := map[string]string{}
	for name, pkg := range map[string]string{rclone: "github.com/rclone/rclone", s5cmd: "github.com/peak/s5cmd/v2"} {
		if programs[name], err = built.Module(ctx, filepath.Join(root, "test/bench/fetch", name), name, pkg, cfg.Log); err != nil {
			return nil, err
		}
	}
	cli, err := awsCLI(ctx)
	if err != nil {
		return nil, err
	}
	credentials := []string{"AWS_ACCESS_KEY_ID=" + server.Access, "AWS_SECRET_ACCESS_KEY=" + server.Secret, "AWS_DEFAULT_REGION=" + s3.Region, "AWS_REGION=" + s3.Region}
	return []side{
		{ours, true, false, credentials, func(s set, _, dest string) []string {
			return []string{cfg.Loader, "--endpoint", server.Endpoint, "--progress", "none", "--log-level", "warning", "s3://" + s.bucket() + "/", dest}
		}},
		{rclone, true, false, []string{
			"RCLONE_CONFIG=" + filepath.Join(cfg.Dir, "no-rclone.conf"), "RCLONE_CONFIG_BENCH_TYPE=s3", "RCLONE_CONFIG_BENCH_PROVIDER=Other",
			"RCLONE_CONFIG_BENCH_ENDPOINT=" + server.Endpoint, "RCLONE_CONFIG_BENCH_REGION=" + s3.Region,
			"RCLONE_CONFIG_BENCH_ACCESS_KEY_ID=" + server.Access, "RCLONE_CONFIG_BENCH_SECRET_ACCESS_KEY=" + server.Secret,
		}, func(s set, _, dest string) []string {
			return []string{programs[rclone], "copy", "--transfers", "32", "--checkers", "32", "--multi-thread-streams", "8", "bench:" + s.bucket(), dest}
		}},
		{s5cmd, false, false, credentials, func(s set, _, dest string) []string {
			return []string{programs[s5cmd], "--endpoint-url", server.Endpoint, "--log", "error", "cp", "s3://" + s.bucket() + "/*", dest + "/"}
		}},
		{aws, false, true, credentials, func(s set, _, dest string) []string {
			return []string{cli, "--endpoint-url", server.Endpoint, "s3", "sync", "--only-show-errors", "s3://" + s.bucket(), dest}
		}},
		{plain, false, true, nil, func(_ set, from, dest string) []string { return []string{"cp", "-r", from + "/.", dest} }},
	}, nil
}

// awsCLI returns Debian's aws, and installs it if it is missing.
func awsCLI(ctx context.Context) (string, error) {
	const path = "/usr/bin/aws"
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	out, err := exec.CommandContext(ctx, "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends", "awscli").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("install awscli: %w: %s", err, out)
	}
	return path, nil
}

// usage is what a run used. cpu is the client's processor time only, and server is its server's.
type usage struct {
	wall, cpu, server time.Duration
	peak              float64 // MiB
}

func (u usage) String() string {
	return fmt.Sprintf("%.2f s, CPU %.2f s, the server's %.2f s, %.0f MiB at most", u.wall.Seconds(), u.cpu.Seconds(), u.server.Seconds(), u.peak)
}

// run has the side fetch the set.
func (o side) run(ctx context.Context, s set, from, dest string) (usage, error) {
	argv := o.argv(s, from, dest)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), o.env...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return usage{}, err
	}
	peak := make(chan float64, 1)
	go func() { peak <- figure.PeakOf(cmd.Process.Pid) }()
	err := cmd.Wait()
	u := usage{wall: time.Since(began), peak: <-peak}
	if err != nil {
		return u, fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	u.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return u, nil
}

// readAll reads all files of a folder into the page cache.
func readAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.Copy(io.Discard, file)
		return err
	})
}

// leave truncates the files of a folder, so that the next run has as much disk space and page cache as this one. It
// does not remove them: for minutes, ext4 skips the inodes of removed files one by one, which would cost the next
// program that creates files more than creating them.
func (s set) leave(dir string) error {
	if s.small() {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		return os.Truncate(path, 0)
	})
}

// quiet waits until all dirty pages are written to disk.
func quiet(ctx context.Context) error {
	if out, err := exec.CommandContext(ctx, "sync").CombinedOutput(); err != nil {
		return fmt.Errorf("sync: %w: %s", err, out)
	}
	return nil
}

// verify checks that all objects were fetched and, if the loader fetched them, that it verified each checksum.
func (s set) verify(dest string) error {
	files, bytes := 0, int64(0)
	err := filepath.WalkDir(dest, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.Name() == ".flexlvm" {
			return fs.SkipDir
		}
		if !entry.IsDir() {
			info, err := entry.Info()
			if err != nil {
				return err
			}
			files, bytes = files+1, bytes+info.Size()
		}
		return nil
	})
	if err != nil {
		return err
	}
	if files != s.objects || bytes != s.bytes() {
		return fmt.Errorf("%d files of %d bytes came, want %d of %d", files, bytes, s.objects, s.bytes())
	}
	manifest, err := os.ReadFile(filepath.Join(dest, ".flexlvm/manifest.jsonl"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if n := strings.Count(string(manifest), `"check":"`+s.check()+`"`); err == nil && n != s.objects {
		err = fmt.Errorf("%d of %d files were checked by %s", n, s.objects, s.check())
	}
	return err
}
