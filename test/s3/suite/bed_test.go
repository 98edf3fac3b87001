//go:build s3

package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/flexlvm/flexlvm/test/bench/figure"
	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/s3"
)

// longest bounds every wait. A loader waits until its disk has written everything, and virtual nodes
// use the same disk.
const longest = 15 * time.Minute

var (
	server *s3.Server
	loader string // the program
)

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "flexlvm-suite-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	loader = filepath.Join(dir, "fetch")
	if err := built.Program(ctx, loader, "./cmd/fetch"); err != nil {
		return 0, err
	}
	if server, err = s3.Start(ctx, s3.Config{Domain: domain, Log: os.Stderr}); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	code = m.Run()
	if registryStarted != nil {
		err = registryStarted.Stop()
	}
	return code, err
}

// A bed is a bucket behind a proxy, and a destination.
type bed struct {
	t      *testing.T
	ctx    context.Context
	bucket string
	proxy  *s3.Proxy
	dest   string
	env    []string
}

var notInBuckets = regexp.MustCompile(`[^a-z0-9]+`)

// newBed returns a bed for a test that may run in parallel.
func newBed(t *testing.T) *bed {
	t.Helper()
	return newBedFor(t, longest)
}

// newBedFor is newBed with a deadline.
func newBedFor(t *testing.T, most time.Duration) *bed {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	t.Cleanup(cancel)
	b := &bed{t: t, ctx: ctx, dest: filepath.Join(t.TempDir(), "dest")}
	b.bucket = strings.Trim(notInBuckets.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	b.env = []string{"AWS_ACCESS_KEY_ID=" + server.Access, "AWS_SECRET_ACCESS_KEY=" + server.Secret, "AWS_REGION=" + s3.Region}
	require.NoError(t, os.Mkdir(b.dest, 0o755))
	require.NoError(t, server.MakeBucket(ctx, b.bucket, false))
	var err error
	b.proxy, err = server.Proxy()
	require.NoError(t, err)
	t.Cleanup(b.proxy.Close)
	return b
}

// put uploads objects, with a CRC64NVME.
func (b *bed) put(objects tree) {
	b.t.Helper()
	var group errgroup.Group
	group.SetLimit(8)
	for key, content := range objects {
		group.Go(func() error {
			_, err := server.Put(b.ctx, b.bucket, key, []byte(content), true)
			return err
		})
	}
	require.NoError(b.t, group.Wait())
}

// hold returns a function that blocks a request, and one that releases it, at the latest at the end of
// the test.
func (b *bed) hold() (held, release func()) {
	gate := make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	b.t.Cleanup(release)
	return func() { <-gate }, release
}

// url returns the URL of a path in the bucket.
func (b *bed) url(path string) string { return "s3://" + b.bucket + "/" + path }

// An outcome is the result of a run of the program.
type outcome struct {
	code   int
	stdout string
	stderr string
	result summary
	// peak is its largest memory, in MiB.
	peak float64
}

type summary struct {
	State      string
	FilesDone  int
	FilesTotal int
	BytesDone  int64
	BytesTotal int64
	Refused    int
	Ready      bool
	Retryable  bool
	Message    string
	Index      string
	Notes      []string
}

// fetch loads a source into the bed's destination and returns the outcome.
func (b *bed) fetch(source string, flags ...string) outcome {
	b.t.Helper()
	r := b.start(source, flags...)
	return r.wait()
}

// A running is a run of the program that has not been waited for.
type running struct {
	bed            *bed
	cmd            *exec.Cmd
	result         string
	stdout, stderr bytes.Buffer
	peak           chan float64
}

func (b *bed) start(source string, flags ...string) *running {
	b.t.Helper()
	return b.launch(append(append([]string{"--endpoint", b.proxy.Endpoint}, flags...), source, b.dest)...)
}

// launch starts the program with these arguments and a file for its result.
func (b *bed) launch(args ...string) *running {
	b.t.Helper()
	r := &running{bed: b, result: filepath.Join(b.t.TempDir(), "result")}
	if len(args) > 0 && slices.Contains([]string{"put", "prepare", "mirror", "serve"}, args[0]) {
		args = append([]string{args[0], "--result", r.result}, args[1:]...)
	} else {
		args = append([]string{"--result", r.result}, args...)
	}
	r.cmd = exec.CommandContext(b.ctx, loader, args...)
	r.cmd.Env = append([]string{"HOME=" + b.t.TempDir(), "PATH=/nonexistent"}, b.env...)
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	require.NoError(b.t, r.cmd.Start())
	r.peak = make(chan float64, 1)
	go func() { r.peak <- figure.PeakOf(r.cmd.Process.Pid) }()
	return r
}

// wait waits for the program's end. Unless it was killed, its result must exist and fit a Job's
// termination message.
func (r *running) wait() outcome {
	t := r.bed.t
	t.Helper()
	err := r.cmd.Wait()
	var exit *exec.ExitError
	require.True(t, err == nil || errors.As(err, &exit), "%v", err)
	require.NoError(t, r.bed.ctx.Err(), "it takes too long: %s", r.stderr.String())
	o := outcome{code: r.cmd.ProcessState.ExitCode(), stdout: r.stdout.String(), stderr: r.stderr.String()}
	o.peak = <-r.peak
	require.NotContains(t, o.stdout+o.stderr, server.Secret)
	content, err := os.ReadFile(r.result)
	if o.code == -1 || o.code == 2 {
		return o
	}
	require.NoError(t, err, o.stderr)
	require.LessOrEqual(t, len(content), 4096)
	require.NotContains(t, string(content), server.Secret)
	require.NoError(t, json.Unmarshal(content, &o.result), string(content))
	return o
}

// tree maps paths to the files' content.
type tree map[string]string

// files returns the destination's files without the loader's own. All must be regular files.
func (b *bed) files() tree {
	b.t.Helper()
	return filesIn(b.t, b.dest)
}

func filesIn(t *testing.T, dir string) tree {
	t.Helper()
	found := tree{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name == ".flexlvm" || name == "lost+found" {
				return fs.SkipDir
			}
			return nil
		}
		require.True(t, entry.Type().IsRegular(), path)
		content, err := os.ReadFile(path)
		found[name] = string(content)
		return err
	})
	require.NoError(t, err)
	return found
}

type entry struct {
	Path, ETag, VersionID, Check, Checksum string
	Bytes                                  int64
	FetchedAt                              time.Time
	Deleted                                bool
}

// manifest returns the manifest's entries of finished files in their order.
func (b *bed) manifest() []entry {
	b.t.Helper()
	content, err := os.ReadFile(filepath.Join(b.dest, ".flexlvm/manifest.jsonl"))
	require.NoError(b.t, err)
	var all []entry
	for line := range strings.Lines(string(content)) {
		var e entry
		require.NoError(b.t, json.Unmarshal([]byte(line), &e), line)
		all = append(all, e)
	}
	return all
}

// complete reports whether the destination is marked as complete.
func (b *bed) complete() bool {
	_, err := os.Stat(filepath.Join(b.dest, ".flexlvm/complete"))
	return err == nil
}

// whole checks that every file of the destination equals the source's, and returns the files.
func (b *bed) whole(source tree) tree {
	b.t.Helper()
	found := b.files()
	for path, content := range found {
		require.True(b.t, source[path] == content, "%s is not what it should be", path)
	}
	return found
}

// noise returns non-repeating content of that size.
func noise(seed uint64, size int) string {
	content := make([]byte, size)
	for i := range content {
		seed = seed*6364136223846793005 + 1442695040888963407
		content[i] = byte(seed >> 56)
	}
	return string(content)
}
