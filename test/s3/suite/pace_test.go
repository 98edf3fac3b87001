//go:build s3

package suite

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/s3"
)

func TestOrder(t *testing.T) {
	objects := tree{"a": noise(60, 3000), "b": noise(61, 10), "c": noise(62, 200000), "d": noise(63, 500)}
	list := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(list, []byte("d\nb\n"), 0o600))
	for name, c := range map[string]struct {
		flags []string
		want  string
	}{
		"name": {[]string{"--order", "name"}, "abcd"},
		"size": {[]string{"--order", "size"}, "bdac"},
		"list": {[]string{"--order", "list", "--order-file", list}, "dbac"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.put(objects)
			o := b.fetch(b.url(""), append(c.flags, "--parallel", "1")...)
			require.Zero(t, o.code, o.stderr)
			got := ""
			for _, e := range b.manifest() {
				got += e.Path
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestBandwidth(t *testing.T) {
	b := newBed(t)
	objects := tree{"a": noise(64, 3<<20), "b": noise(65, 3<<20)}
	b.put(objects)
	began := time.Now()
	o := b.fetch(b.url(""), "--bandwidth", "2Mi")
	require.Zero(t, o.code, o.stderr)
	require.Len(t, b.whole(objects), 2)
	limited := time.Since(began)
	require.Greater(t, limited, 2*time.Second, "6 MiB at 2 MiB per second, less what may go at once")
	b.dest = t.TempDir()
	began = time.Now()
	o = b.fetch(b.url(""))
	require.Zero(t, o.code, o.stderr)
	require.Less(t, limited, time.Since(began)+time.Minute, "no more than that is held back") // it syncs the whole disk
}

func TestProgressAsLines(t *testing.T) {
	b := newBed(t)
	objects := tree{"a": noise(66, 3<<20), "b": noise(67, 3<<20)}
	b.put(objects)
	o := b.fetch(b.url(""), "--bandwidth", "1Mi", "--progress", "json") // it takes at least 5 s
	require.Zero(t, o.code, o.stderr)
	last, lines := int64(0), 0
	for line := range strings.Lines(o.stdout + o.stderr) {
		var p progress
		if json.Unmarshal([]byte(line), &p) != nil || p.State == "" {
			continue
		}
		lines++
		require.GreaterOrEqual(t, p.BytesDone, last, "nothing is taken back")
		last = p.BytesDone
	}
	require.Greater(t, lines, 1)
	require.Equal(t, int64(6<<20), last)
	o = b.fetch(b.url(""), "--progress", "none")
	require.Zero(t, o.code)
	require.NotContains(t, o.stdout, `"bytesDone"`)
}

type progress struct {
	summary
	BytesPerSecond float64
	ETASeconds     float64
}

// look reads a running loader's progress and whether it is ready.
func look(address string) (p progress, ready bool, err error) {
	response, err := http.Get("http://" + address + "/progress")
	if err != nil {
		return p, false, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return p, false, err
	}
	if err := json.Unmarshal(content, &p); err != nil {
		return p, false, fmt.Errorf("%w: %s", err, content)
	}
	response, err = http.Get("http://" + address + "/ready")
	if err != nil {
		return p, false, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusServiceUnavailable {
		return p, false, fmt.Errorf("/ready answers %s", response.Status)
	}
	return p, response.StatusCode == http.StatusOK, nil
}

// A loader is ready once the requested part is there, while the rest is still being fetched.
func TestReady(t *testing.T) {
	for name, c := range map[string]struct {
		after string
		ready bool
	}{
		"files":            {"3", true},
		"more files":       {"4", false},
		"bytes":            {"100Ki", true},
		"more bytes":       {"3Mi", false},
		"":                 {"", false},
		"more than it has": {"1000", false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.put(some())
			held, release := b.hold()
			b.proxy.Inject(s3.Fault{Method: "GET", Path: "/a/second", Before: held})
			address := ownAddress(t)
			flags := []string{"--listen", address, "--stall", "1m"}
			if c.after != "" {
				flags = append(flags, "--ready-after", c.after)
			}
			r := b.start(b.url(""), flags...)
			var p progress
			var ready bool
			var err error
			require.Eventually(t, func() bool {
				p, ready, err = look(address)
				return err == nil && p.FilesDone == len(some())-1
			}, longest, 20*time.Millisecond, "%v", err)
			require.Equal(t, c.ready, ready)
			require.Equal(t, c.ready, p.Ready)
			require.Equal(t, "fetching", p.State)
			require.Equal(t, len(some()), p.FilesTotal)
			require.Len(t, b.whole(some()), len(some())-1)
			require.Len(t, b.manifest(), len(some())-1)
			release()
			o := r.wait()
			require.Zero(t, o.code, o.stderr)
			require.True(t, o.result.Ready)
		})
	}
}

// Large objects and many connections stay within the allowed memory.
func TestMemory(t *testing.T) {
	b := newBed(t)
	objects := tree{"big": noise(68, 200<<20)}
	for i := range 200 {
		objects[fmt.Sprintf("small/%03d", i)] = noise(uint64(69+i), 64<<10)
	}
	b.put(objects)
	o := b.fetch(b.url(""))
	require.Zero(t, o.code, o.stderr)
	require.Len(t, b.whole(objects), len(objects))
	t.Logf("%.0f MiB at most", o.peak)
	require.Less(t, o.peak, 256.0)
}
