//go:build s3

package suite

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/s3"
)

func TestSecondRunFetchesNothing(t *testing.T) {
	b := newBed(t)
	b.put(some())
	require.Zero(t, b.fetch(b.url("")).code)
	b.proxy.Forget()
	o := b.fetch(b.url(""))
	require.Zero(t, o.code, o.stderr)
	require.Zero(t, b.proxy.Sent(""))
	require.True(t, b.complete())
	require.Equal(t, some(), b.whole(some()))
	require.Len(t, b.manifest(), len(some()), "nothing is there twice")
}

func TestSync(t *testing.T) {
	b := newBed(t)
	now := some()
	b.put(now)
	require.Zero(t, b.fetch(b.url("")).code)

	now["a/third"], now["new"] = noise(20, len(now["a/third"])), "new" // of the same size
	delete(now, "fourth")
	b.put(tree{"a/third": now["a/third"], "new": now["new"]})
	require.NoError(t, server.Remove(b.ctx, b.bucket, "fourth"))
	require.NoError(t, os.WriteFile(b.dest+"/theirs", []byte("a user's"), 0o600))
	b.proxy.Forget()
	o := b.fetch(b.url(""), "--sync")
	require.Zero(t, o.code, o.stderr)
	require.True(t, b.complete())
	require.Equal(t, int64(len(now["a/third"])+len("new")), b.proxy.Sent(""))
	require.FileExists(t, b.dest+"/theirs", "what the loader did not bring it does not take")
	require.NoError(t, os.Remove(b.dest+"/theirs"))
	require.Equal(t, now, b.files())
}

// A failed listing does not count as a deletion of objects.
func TestSyncWithoutAListing(t *testing.T) {
	b := newBed(t)
	b.put(some())
	require.Zero(t, b.fetch(b.url("")).code)
	for _, fault := range []s3.Fault{
		{Method: "GET", Query: "list-type", Status: 500, Code: "InternalError"},
		{Method: "GET", Query: "list-type", Cut: s3.After(500)},
		{Method: "GET", Query: "list-type", Status: 403, Code: "AccessDenied"},
	} {
		b.proxy.Inject(fault)
		o := b.fetch(b.url(""), "--sync", "--attempts", "2")
		require.NotZero(t, o.code)
		require.Equal(t, some(), b.whole(some()))
	}
}

// A loader that is killed at any moment leaves only complete files, and the next run resumes.
func TestKilledAtEveryStage(t *testing.T) {
	small := tree{}
	size := int64(0)
	for i := range 20 {
		name := fmt.Sprintf("small/%02d", i)
		small[name] = noise(uint64(30+i), 64<<10)
		size += 64 << 10
	}
	small["big"] = noise(29, 36<<20)
	size += 36 << 20
	for name, fault := range map[string]s3.Fault{
		"before the listing":  {Method: "GET", Query: "list-type"},
		"at the first object": {Method: "GET", Path: "/small/00"},
		"among small ones":    {Method: "GET", Path: "/small/11"},
		"at the last of them": {Method: "GET", Path: "/small/19"},
		"in the big one":      {Method: "GET", Path: "/big"},
		"further in the big":  {Method: "GET", Path: "/big", Skip: 1},
		"at its second piece": {Method: "GET", Path: "/big", Skip: 1, Times: 1, Reset: s3.After(1 << 20)},
		"among the first":     {Method: "GET", Path: "/small/05"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.put(small)
			reached := make(chan struct{}, 1000)
			fault.Before = func() { reached <- struct{}{} }
			faults := []s3.Fault{fault}
			if fault.Reset != nil { // later requests wait, or the object would arrive piece by piece
				faults = append(faults, s3.Fault{Method: "GET", Path: fault.Path, Skip: fault.Skip, Delay: time.Hour})
			} else {
				faults[0].Delay = time.Hour
			}
			b.proxy.Inject(faults...)
			r := b.start(b.url(""))
			select {
			case <-reached:
			case <-b.ctx.Done():
				t.Fatal("it is never asked for")
			}
			settle(b, size/2)
			require.NoError(t, r.cmd.Process.Signal(syscall.SIGKILL))
			r.wait()
			require.False(t, b.complete())
			done := b.whole(small)
			before := b.proxy.Sent("")

			b.proxy.Inject()
			b.proxy.Forget()
			o := b.fetch(b.url(""))
			require.Zero(t, o.code, o.stderr)
			require.Equal(t, len(small), len(b.whole(small)))
			require.True(t, b.complete())
			for path := range done {
				require.Zero(t, b.proxy.Sent("/"+path), "%s was there", path)
			}
			// One piece for each connection that was not yet recorded may be fetched twice.
			t.Logf("%d files done, %d bytes before and %d after, of %d", len(done), before, b.proxy.Sent(""), size)
			require.LessOrEqual(t, before+b.proxy.Sent(""), size+size/2)
		})
	}
}

// settle waits until the proxy has sent nothing for a while and all but this much is recorded in the
// manifest and journal. The kernel's buffers hold much that the loader has not yet read.
func settle(b *bed, but int64) {
	last := int64(-1)
	for now := b.proxy.Sent(""); (now != last || now-known(b.t, filepath.Join(b.dest, ".flexlvm")) > but) && b.ctx.Err() == nil; now = b.proxy.Sent("") {
		last = now
		select {
		case <-b.ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func TestTold(t *testing.T) {
	b := newBed(t)
	b.put(some())
	b.proxy.Inject(s3.Fault{Method: "GET", Path: "/a/second", Delay: time.Hour})
	r := b.start(b.url(""))
	require.Eventually(t, func() bool { return len(b.files()) == len(some())-1 }, longest, 20*time.Millisecond)
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	o := r.wait()
	require.Equal(t, 75, o.code, o.stderr)
	require.True(t, o.result.Retryable)
	require.Len(t, b.whole(some()), len(some())-1)
	require.False(t, b.complete())
}

// Three quarters of each piece of a big object were fetched: only the rest is fetched again.
func TestBigObjectIsResumed(t *testing.T) {
	b := newBed(t)
	const size = 64 << 20
	big := tree{"big": noise(40, size)}
	b.put(big)
	b.proxy.Inject(s3.Fault{Method: "GET", Path: "/big", Hang: s3.After(12 << 20)})
	r := b.start(b.url(""))
	require.Eventually(t, func() bool { return b.proxy.Sent("") >= size*3/4 }, longest, 10*time.Millisecond)
	settle(b, size/8)
	require.NoError(t, r.cmd.Process.Kill())
	r.wait()
	require.Empty(t, b.files())
	b.proxy.Inject()
	b.proxy.Forget()
	o := b.fetch(b.url(""))
	require.Zero(t, o.code, o.stderr)
	require.Len(t, b.whole(big), 1)
	t.Logf("%d of %d bytes came after the kill", b.proxy.Sent(""), size)
	require.LessOrEqual(t, b.proxy.Sent(""), int64(size*3/8))
}

// An object that was replaced while half of it was fetched is fetched from the start.
func TestOtherObjectIsNotResumed(t *testing.T) {
	b := newBed(t)
	b.put(tree{"big": noise(41, 36<<20)})
	b.proxy.Inject(s3.Fault{Method: "GET", Path: "/big", Skip: 1, Delay: time.Hour})
	r := b.start(b.url(""))
	require.Eventually(t, func() bool { return b.proxy.Sent("") > 1<<20 }, longest, 10*time.Millisecond)
	settle(b, 36<<20)
	require.NoError(t, r.cmd.Process.Kill())
	r.wait()
	want := tree{"big": noise(42, 36<<20)}
	b.put(want)
	b.proxy.Inject()
	o := b.fetch(b.url(""))
	require.Zero(t, o.code, o.stderr)
	require.Len(t, b.whole(want), 1)
}

// Two loaders never fill one destination at the same time. The second fails as retryable.
func TestTwoAtOnce(t *testing.T) {
	b := newBed(t)
	b.put(some())
	held, release := b.hold()
	b.proxy.Inject(s3.Fault{Method: "GET", Path: "/a/second", Before: held})
	first := b.start(b.url(""))
	require.Eventually(t, func() bool { return len(b.files()) == len(some())-1 }, longest, 20*time.Millisecond)
	o := b.fetch(b.url(""))
	require.Equal(t, 75, o.code, o.stderr)
	require.True(t, o.result.Retryable)
	release()
	o = first.wait()
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, some(), b.files())
	require.True(t, b.complete())
}

// An upload that is repeated after a kill sends only what is missing.
func TestPutKilled(t *testing.T) {
	b := newBed(t)
	from := t.TempDir()
	want := tree{"a": noise(90, 100<<10), "b": noise(91, 100<<10), "c": noise(92, 100<<10)}
	for name, content := range want {
		require.NoError(t, os.WriteFile(from+"/"+name, []byte(content), 0o600))
	}
	b.proxy.Inject(s3.Fault{Method: "PUT", Path: "/b", Delay: time.Hour})
	args := []string{"put", "--endpoint", b.proxy.Endpoint, from, b.url("out/")}
	r := b.launch(args...)
	require.Eventually(t, func() bool {
		_, errA := server.Get(b.ctx, b.bucket, "out/a")
		_, errC := server.Get(b.ctx, b.bucket, "out/c")
		return errA == nil && errC == nil
	}, longest, 20*time.Millisecond)
	require.NoError(t, r.cmd.Process.Kill())
	r.wait()
	b.proxy.Inject()
	b.proxy.Forget()
	o := b.launch(args...).wait()
	require.Zero(t, o.code, o.stderr)
	sent := 0
	for _, r := range b.proxy.Requests() {
		if r.Method == http.MethodPut {
			sent++
		}
	}
	require.Equal(t, 1, sent)
	for name, content := range want {
		got, err := server.Get(b.ctx, b.bucket, "out/"+name)
		require.NoError(t, err)
		require.True(t, content == string(got), name)
	}
}
