//go:build s3

package suite

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/s3"
)

// some returns files. Tests do something to the second of them.
func some() tree {
	return tree{"a/first": noise(5, 100<<10), "a/second": noise(6, 3<<20), "a/third": noise(7, 50<<10), "fourth": "x"}
}

// A temporary fault does no harm and causes little extra transfer.
func TestFaultsThatPass(t *testing.T) {
	const key = "/a/second"
	stalled := []string{"--stall", "12s"}
	for name, c := range map[string]struct {
		fault s3.Fault
		flags []string
		again int64 // bytes that may be transferred twice
	}{
		"500":                 {fault: s3.Fault{Method: "GET", Path: key, Status: 500, Code: "InternalError", Times: 2}},
		"503":                 {fault: s3.Fault{Method: "GET", Path: key, Status: 503, Code: "SlowDown", Times: 2}},
		"500 of the listing":  {fault: s3.Fault{Method: "GET", Query: "list-type", Status: 500, Code: "InternalError", Times: 1}},
		"listing cut":         {fault: s3.Fault{Method: "GET", Query: "list-type", Cut: s3.After(300), Times: 1}},
		"reset at once":       {fault: s3.Fault{Method: "GET", Path: key, Reset: s3.After(0), Times: 2}},
		"reset midway":        {fault: s3.Fault{Method: "GET", Path: key, Reset: s3.After(1 << 20), Times: 1}, again: 1<<20 + 256<<10},
		"cut midway":          {fault: s3.Fault{Method: "GET", Path: key, Cut: s3.After(1 << 20), Times: 1}, again: 1<<20 + 256<<10},
		"slow body":           {fault: s3.Fault{Method: "GET", Path: key, Drip: 50 * time.Millisecond, Times: 1}, flags: stalled, again: 1000},
		"no answer":           {fault: s3.Fault{Method: "GET", Path: key, Delay: time.Hour, Times: 1}, flags: stalled},
		"no answer to a list": {fault: s3.Fault{Method: "GET", Query: "list-type", Delay: time.Hour, Times: 1}, flags: stalled},
		"altered byte":        {fault: s3.Fault{Method: "GET", Path: key, Edit: s3.Flip(1000), Times: 1}, again: 3 << 20},
		"another ETag":        {fault: s3.Fault{Method: "GET", Path: key, ETag: "0123456789abcdef0123456789abcdef", Times: 1}, again: 3 << 20},
		"short body":          {fault: s3.Fault{Method: "GET", Path: key, Edit: s3.Shorten(1000), Times: 1}, again: 3 << 20},
	} {
		for _, checksummed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s %t", name, checksummed), func(t *testing.T) {
				b := newBed(t)
				size := int64(0)
				for key, content := range some() {
					_, err := server.Put(b.ctx, b.bucket, key, []byte(content), checksummed)
					require.NoError(t, err)
					size += int64(len(content))
				}
				b.proxy.Inject(c.fault)
				o := b.fetch(b.url(""), c.flags...)
				require.Zero(t, o.code, o.stderr)
				require.True(t, b.complete())
				require.Len(t, b.whole(some()), len(some()))
				require.LessOrEqual(t, b.proxy.Sent(""), size+c.again+64<<10)
			})
		}
	}
}

// A permanent fault fails the load. All other files are fetched, and no incomplete one is left.
func TestFaultsThatStay(t *testing.T) {
	const key = "/a/second"
	for name, c := range map[string]struct {
		fault s3.Fault
		code  int
	}{
		"500":          {fault: s3.Fault{Method: "GET", Path: key, Status: 500, Code: "InternalError"}, code: 75},
		"reset":        {fault: s3.Fault{Method: "GET", Path: key, Reset: s3.After(1000)}, code: 75},
		"slow":         {fault: s3.Fault{Method: "GET", Path: key, Drip: 50 * time.Millisecond}, code: 75},
		"no answer":    {fault: s3.Fault{Method: "GET", Path: key, Delay: time.Hour}, code: 75},
		"altered byte": {fault: s3.Fault{Method: "GET", Path: key, Edit: s3.Flip(1000)}, code: 1},
		"short body":   {fault: s3.Fault{Method: "GET", Path: key, Edit: s3.Shorten(1000)}, code: 75},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.put(some())
			b.proxy.Inject(c.fault)
			stall := "1m"
			if c.fault.Drip > 0 || c.fault.Delay > 0 {
				stall = "10s"
			}
			o := b.fetch(b.url(""), "--attempts", "2", "--stall", stall)
			require.Equal(t, c.code, o.code, o.stderr)
			require.Equal(t, "failed", o.result.State)
			require.Equal(t, c.code == 75, o.result.Retryable)
			require.Contains(t, o.result.Message, "a/second")
			require.False(t, b.complete())
			require.NotContains(t, b.whole(some()), "a/second")

			b.proxy.Inject()
			require.Zero(t, b.fetch(b.url("")).code, "and then it passes")
			require.Len(t, b.whole(some()), len(some()))
			require.True(t, b.complete())
		})
	}
}

func TestOneIsForbidden(t *testing.T) {
	b := newBed(t)
	b.put(some())
	b.proxy.Inject(s3.Fault{Path: "/a/second", Status: 403, Code: "AccessDenied"})
	o := b.fetch(b.url(""))
	require.Equal(t, 1, o.code, o.stderr)
	require.Contains(t, o.result.Message, "a/second")
	require.False(t, o.result.Retryable)
	require.Len(t, b.whole(some()), len(some())-1)
	require.False(t, b.complete())
}

func TestServerIsAway(t *testing.T) {
	b := newBed(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	o := b.launch("--endpoint", "http://"+free.Addr().String(), "--attempts", "2", b.url(""), b.dest).wait()
	require.Equal(t, 75, o.code, o.stderr)
	require.True(t, o.result.Retryable)
	require.Contains(t, o.result.Message, free.Addr().String())
	require.False(t, b.complete())
}

func TestTimeIsUp(t *testing.T) {
	b := newBed(t)
	b.put(some())
	b.proxy.Inject(s3.Fault{Method: "GET", Path: "/a/second", Delay: time.Hour})
	o := b.fetch(b.url(""), "--timeout", "2s")
	require.Equal(t, 124, o.code, o.stderr)
	require.False(t, o.result.Retryable, "whoever gave the time has to give more")
	require.False(t, b.complete())
	b.whole(some())
}

// An object that changes while it is read is detected and read again.
func TestObjectChanges(t *testing.T) {
	const size = 36 << 20 // more than is fetched in one piece
	for name, c := range map[string]struct {
		grown int
		drop  []string
	}{
		"of the same size":                      {},
		"longer":                                {grown: 5 << 20},
		"shorter":                               {grown: -5 << 20},
		"before a server without conditions":    {drop: []string{"If-Match"}},
		"longer, before one without conditions": {drop: []string{"If-Match"}, grown: 5 << 20},
	} {
		for _, checksummed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s %t", name, checksummed), func(t *testing.T) {
				b := newBed(t)
				before, after := noise(8, size), noise(9, size+c.grown)
				_, err := server.Put(b.ctx, b.bucket, "big", []byte(before), checksummed)
				require.NoError(t, err)
				change := func() {
					_, err := server.Put(b.ctx, b.bucket, "big", []byte(after), checksummed)
					require.NoError(t, err)
				}
				b.proxy.Inject(
					s3.Fault{Method: "GET", Path: "/big", Skip: 1, Times: 1, Before: change, Drop: c.drop},
					s3.Fault{Method: "GET", Path: "/big", Skip: 1, Drop: c.drop},
				)
				o := b.fetch(b.url(""))
				require.Zero(t, o.code, o.stderr)
				require.True(t, b.files()["big"] == after, "it is neither of both")
				require.True(t, b.complete())
			})
		}
	}
}

// The listing names an object that no longer exists when it is read.
func TestObjectGoes(t *testing.T) {
	b := newBed(t)
	b.put(some())
	b.proxy.Inject(s3.Fault{Method: "GET", Query: "list-type", Edit: s3.Entries("a/ghost"), Times: 1})
	o := b.fetch(b.url(""))
	require.Equal(t, 75, o.code, o.stderr)
	require.True(t, o.result.Retryable)
	require.Contains(t, o.result.Message, "a/ghost")
	require.Len(t, b.whole(some()), len(some()))
	require.False(t, b.complete())
	o = b.fetch(b.url(""))
	require.Zero(t, o.code, o.stderr)
	require.True(t, b.complete())
}

// A listing has many pages, one of which is refused at first.
func TestManyPages(t *testing.T) {
	b := newBed(t)
	want := tree{}
	for i := range 1010 {
		want[fmt.Sprintf("%04d", i)] = "x"
	}
	b.put(want)
	b.proxy.Inject(s3.Fault{Method: http.MethodGet, Query: "continuation-token", Status: 503, Code: "SlowDown", Times: 1})
	o := b.fetch(b.url(""))
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, want, b.files())
}

// Objects beyond the first page of a listing are listed by folders in parallel: none is missed and none
// is listed twice.
func TestManyFolders(t *testing.T) {
	b := newBed(t)
	want := tree{"000": "first", "b-": "between", "b0": "between", "zz": "last"}
	for folder, n := range map[string]int{"a": 400, "b": 1100, "c/d": 30, "c": 5, "x y+%/é": 12} {
		for i := range n {
			want[fmt.Sprintf("%s/%04d", folder, i)] = folder
		}
	}
	b.put(want)
	b.proxy.Inject(s3.Fault{Method: http.MethodGet, Query: "continuation-token", Status: 503, Code: "SlowDown", Times: 1})
	o := b.fetch(b.url(""))
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, want, b.files())
	require.True(t, b.complete())
	listed := map[string]bool{}
	for _, r := range b.proxy.Requests() {
		listed[r.Query.Get("prefix")] = true
	}
	require.Subset(t, slices.Collect(maps.Keys(listed)), []string{"a/", "b/", "c/", "x y+%/"})
}
