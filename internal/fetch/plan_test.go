package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/dirstore"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

func TestDecide(t *testing.T) {
	o := func(path, etag string, size int64) store.Object {
		return store.Object{Path: path, ETag: etag, Size: size}
	}
	entries := map[string]Entry{
		"same":    {Path: "same", ETag: "1", Bytes: 10},
		"changed": {Path: "changed", ETag: "1", Bytes: 10},
		"lost":    {Path: "lost", ETag: "1", Bytes: 10},
		"gone":    {Path: "gone", ETag: "1", Bytes: 10},
	}
	here := func(e Entry) (bool, error) { return e.Path != "lost", nil }
	p, err := makePlan([]store.Object{o("same", "1", 10), o("changed", "2", 10), o("lost", "1", 10), o("new", "1", 5)}, entries, Config{}.trusts, here)
	require.NoError(t, err)
	require.Equal(t, []store.Object{o("changed", "2", 10), o("lost", "1", 10), o("new", "1", 5)}, p.fetch)
	require.Equal(t, []Entry{entries["same"]}, p.keep)
	require.Equal(t, []Entry{entries["gone"]}, p.gone)
	require.Equal(t, need{bytes: 10, inodes: 1}, p.replaced)

	_, err = makePlan([]store.Object{o("same", "1", 10)}, entries, Config{}.trusts, func(Entry) (bool, error) { return false, errors.New("no look") })
	require.EqualError(t, err, "no look")
}

func TestArrange(t *testing.T) {
	names := func(order string, list ...string) (out []string) {
		objects := []store.Object{{Path: "b", Size: 1}, {Path: "c", Size: 3}, {Path: "a", Size: 3}, {Path: "d", Size: 2}}
		require.NoError(t, sortObjects(objects, order, list))
		for _, o := range objects {
			out = append(out, o.Path)
		}
		return out
	}
	require.Equal(t, []string{"a", "b", "c", "d"}, names(OrderName))
	require.Equal(t, []string{"b", "d", "a", "c"}, names(OrderSize))
	require.Equal(t, []string{"d", "b", "a", "c"}, names(OrderList, "d", "x", "b", "d"))
	require.Error(t, sortObjects(nil, "age", nil))
}

func TestSpans(t *testing.T) {
	const size = 100*store.MiB + 1
	span := func(offset, length int64) store.Span { return store.Span{Offset: offset, Length: length} }
	for _, have := range [][]store.Span{
		nil, {span(0, size)}, {span(0, 16*store.MiB)}, {span(5, 10), span(15, 5), span(50*store.MiB, store.MiB)}, {span(size-1, 1)},
	} {
		all := append(append([]store.Span(nil), have...), spans(size, spanSize(size), have)...)
		notes := make([]journalNote, len(all))
		total := int64(0)
		for i, s := range all {
			notes[i] = journalNote{Span: s}
			total += s.Length
			require.Positive(t, s.Length)
		}
		require.EqualValues(t, size, total)
		require.Len(t, disjoint(notes), len(all), "nothing twice")
	}
	require.Equal(t, 16*store.MiB, spanSize(100*store.MiB))
	require.Equal(t, 256*store.MiB, spanSize(10_000*store.GiB))
	require.Equal(t, []journalNote{{Span: store.Span{Offset: 0, Length: 5}}, {Span: store.Span{Offset: 5, Length: 5}}},
		disjoint([]journalNote{{Span: store.Span{Offset: 5, Length: 5}}, {Span: store.Span{Offset: 0, Length: 5}}, {Span: store.Span{Offset: 3, Length: 4}}, {Span: store.Span{Offset: 9, Length: 0}}}))
}

func TestNeeded(t *testing.T) {
	p := plan{
		fetch:    []store.Object{{Path: "a/b/x", Size: 1}, {Path: "a/y", Size: 8192}, {Path: "z", Size: 5000}},
		keep:     []Entry{{Path: "a/k", Bytes: 1}},
		gone:     []Entry{{Path: "g", Bytes: 4096}},
		replaced: need{bytes: 100},
	}
	none := func(store.Object) int64 { return 0 }
	require.Equal(t, need{bytes: 4096 + 8192 + 8192 + 100 - 100, inodes: 4}, p.spaceNeeded(4096, none, false))
	require.Equal(t, need{bytes: 4096 + 8192 + 8192 - 4096, inodes: 4}, p.spaceNeeded(4096, none, true))
	half := func(o store.Object) int64 { return o.Size / 2 }
	require.EqualValues(t, 4096+4096+4096, p.spaceNeeded(4096, half, false).bytes)

	p.replaced.inodes = 2
	require.EqualValues(t, 4, p.spaceNeeded(4096, none, false).inodes, "both stand beside the old ones for a time")
	many := plan{fetch: make([]store.Object, 100_000), replaced: need{inodes: 100_000}}
	require.EqualValues(t, unpublishedFiles, many.spaceNeeded(4096, none, false).inodes, "but not all at once")

	require.NoError(t, checkSpace(need{10, 10}, need{10, 10}))
	require.NoError(t, checkSpace(need{10, 10}, need{10, -1}))
	err := checkSpace(need{2 << 30, 1}, need{1 << 30, 10})
	require.EqualError(t, err, "no room: 2.0 GiB more are needed, and the destination has 1.0 GiB free (2147483648 and 1073741824 bytes); enlarge it or select less")
	require.Equal(t, store.Fatal, store.Classify(err))
	require.ErrorContains(t, checkSpace(need{1, 11}, need{10, 10}), "inodes for 10")
}

func TestOwnNeed(t *testing.T) {
	none := func(store.Object) int64 { return 0 }
	require.Equal(t, need{inodes: 9}, plan{}.ownSpace(8, none))
	small := store.Object{Path: "0123456789", ETag: "01234", Version: "01234", Size: store.MiB}
	require.Equal(t, need{bytes: 2 * (lineBytes + 20), inodes: 2}, plan{fetch: []store.Object{small}}.ownSpace(1, none))
	large := store.Object{Path: "0123456789", Size: store.GiB}
	require.EqualValues(t, (2+1024)*(lineBytes+10), plan{fetch: []store.Object{large}}.ownSpace(1, none).bytes)
	half := func(o store.Object) int64 { return o.Size / 2 }
	require.EqualValues(t, (2+512)*(lineBytes+10), plan{fetch: []store.Object{large}}.ownSpace(1, half).bytes)
}

// Without its path, ETag and version, no line is longer than lineBytes.
func TestLineBytes(t *testing.T) {
	now := time.Date(2026, 12, 31, 23, 59, 59, 123456789, time.FixedZone("", -3600))
	o := store.Object{Size: math.MaxInt64, Modified: now}
	c := store.Check{Kind: store.CheckComposite, Want: strings.Repeat("x", 64), ETagMismatch: true}
	temp := "1023/" + strconv.FormatUint(math.MaxUint64, 36) + "-1000000000"
	e := finishedFile(o, c, nil, temp).entry
	e.FetchedAt = now
	for _, line := range []any{e, noteOf(o, temp, store.Span{Offset: math.MaxInt64, Length: math.MaxInt64}, math.MaxUint64, c)} {
		data, err := json.Marshal(line)
		require.NoError(t, err)
		require.Less(t, len(data)+len(`"etag":"","versionId":"",`), lineBytes, string(data))
	}
}

func TestClassify(t *testing.T) {
	response := func(code string, status int) error {
		return fmt.Errorf("get: %w", minio.ErrorResponse{Code: code, StatusCode: status})
	}
	for _, test := range []struct {
		err  error
		want store.Class
	}{
		{response("InternalError", 500), store.Transient},
		{response("", 502), store.Transient},
		{response("NotImplemented", 501), store.Denied},
		{response("SlowDown", 503), store.Transient},
		{response("", 429), store.Transient},
		{response("RequestTimeout", 400), store.Transient},
		{response("AccessDenied", 403), store.Denied},
		{response("InvalidObjectState", 403), store.Denied},
		{response("SignatureDoesNotMatch", 403), store.Fatal},
		{response("InvalidAccessKeyId", 403), store.Fatal},
		{response("NoSuchBucket", 404), store.Fatal},
		{response("NoSuchKey", 404), store.Gone},
		{response("", 404), store.Gone},
		{response("PreconditionFailed", 412), store.Changed},
		{response("", 416), store.Changed},
		{fmt.Errorf("x: %w", store.ErrChanged), store.Changed},
		{store.ErrStalled, store.Transient},
		{store.ErrChecksum, store.Transient},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, store.Transient},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, store.Transient},
		{&url.Error{Op: "Get", URL: "http://h", Err: &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EPERM)}}, store.Transient},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)}, store.Transient},
		{&os.PathError{Op: "open", Path: "a", Err: syscall.EACCES}, store.Fatal},
		{fmt.Errorf("write: %w", syscall.ENOSPC), store.Fatal},
		{fmt.Errorf("write: %w", syscall.EDQUOT), store.Fatal},
		{syscall.EROFS, store.Fatal},
		{syscall.EUCLEAN, store.Fatal},
		{fmt.Errorf("a %w", store.ErrInTheWay), store.Denied},
		{dirstore.Readable(&os.PathError{Op: "open", Path: "a", Err: syscall.EACCES}), store.Denied},
		{fmt.Errorf("%w: x", store.ErrNoCredentials), store.Fatal},
	} {
		require.Equal(t, test.want, store.Classify(test.err), "%v", test.err)
	}
	var e *store.Error
	require.ErrorAs(t, failed(response("", 500)), &e)
	require.True(t, e.Retryable)
	require.ErrorAs(t, failed(response("AccessDenied", 403)), &e)
	require.False(t, e.Retryable)
	require.ErrorAs(t, failed(fmt.Errorf("x: %w", store.ErrChecksum)), &e)
	require.False(t, e.Retryable, "the same bytes would come again")
	require.NoError(t, failed(nil))
}

func TestPauseGrowsWithinBounds(t *testing.T) {
	last := time.Duration(0)
	for n := 1; n < 80; n++ {
		low, high := store.BackoffDelay(n, 0), store.BackoffDelay(n, 1)
		require.Positive(t, low)
		require.LessOrEqual(t, high, store.MaxBackoff)
		require.GreaterOrEqual(t, high, last)
		require.Equal(t, high/2, low)
		last = high
	}
	require.Equal(t, store.MaxBackoff, last)
}

func TestGateNarrowsOnceForManyAndWidensAgain(t *testing.T) {
	g := newGate(8)
	now := time.Now()
	for range 8 {
		g.acquire()
	}
	for range 8 {
		g.release(true, now)
	}
	require.Equal(t, 4, g.limit)
	g.acquire()
	g.release(true, now.Add(2*time.Second))
	require.Equal(t, 2, g.limit)
	for range 200 {
		g.acquire()
		g.release(false, now)
	}
	require.Equal(t, 8, g.limit)
}

func TestWidthAndBuffers(t *testing.T) {
	many := func(n int, size int64) []store.Object { return slices.Repeat([]store.Object{{Size: size}}, n) }
	require.Equal(t, 5, chooseParallel(5, many(1, 1)))
	require.Equal(t, 1, chooseParallel(0, nil))
	require.Equal(t, 8, chooseParallel(0, many(2, store.GiB)))
	require.Equal(t, 32, chooseParallel(0, many(1000, store.MiB)))
	require.Equal(t, 64, chooseParallel(0, many(1000, 16*store.KiB)))
	require.Equal(t, 32, chooseParallel(0, append(many(1000, 16*store.KiB), many(1, wholeLimit+1)...)))
	for _, memory := range []int64{0, 1, 64 * store.KiB, store.MiB, 10 * store.MiB, 128 * store.MiB, store.GiB} {
		for _, workers := range []int{1, 3, 32, 1024} {
			count, size := buffers(memory, workers)
			require.Positive(t, count)
			require.Zero(t, size%4096)
			if memory >= minBuffer {
				require.LessOrEqual(t, int64(count)*size, memory)
			}
		}
	}
}

// The pieces that wait to be hashed and the workers' buffers together fit into the memory. If all
// workers fetch one object, none of them is too far ahead of its hash.
func TestPool(t *testing.T) {
	for _, memory := range []int64{0, 1, store.MiB, 10 * store.MiB, 40 * store.MiB, 64 * store.MiB, 128 * store.MiB, store.GiB} {
		for _, parallel := range []int{1, 8, 32, 1024} {
			workers, size := buffers(memory, parallel)
			p := newPool(memory, workers, size)
			if memory > 0 {
				require.LessOrEqual(t, int64(workers+p.maxFull)*size, max(memory, minBuffer))
			}
			require.Equal(t, p.maxFull > 0, p.step >= pieceSize)
			require.LessOrEqual(t, int64(workers)*p.step, p.window())
		}
	}
	p := newPool(128*store.MiB, 8, store.MiB)
	require.Equal(t, 8*store.MiB, p.step)
	require.Equal(t, 72, p.maxFull)
	require.Equal(t, 8*store.MiB, p.stepOf(100*store.GiB, store.GiB))
	require.Equal(t, 64*store.MiB, p.stepOf(store.GiB*1024, store.GiB))
	require.Equal(t, store.GiB, newPool(store.MiB, 1, store.MiB).stepOf(1, store.GiB))
}

func TestPortion(t *testing.T) {
	for _, test := range []struct{ perSecond, buffer, want int64 }{
		{0, store.MiB, store.MiB}, {store.GiB, store.MiB, store.MiB}, {2 * store.MiB, store.MiB, 32 * store.KiB}, {2 * store.MiB, 16 * store.KiB, 16 * store.KiB}, {200 * store.KiB, store.MiB, 4 * store.KiB}, {1, store.MiB, 4 * store.KiB},
	} {
		require.Equal(t, test.want, (&bandwidth{perSecond: test.perSecond}).portion(test.buffer))
	}
}

func TestStatus(t *testing.T) {
	p := NewProgress(ReadyAfter{Files: 2})
	p.set(protocol.StateFetching, "")
	p.bytesTotal.Store(1000)
	now := time.Now()
	require.Zero(t, p.Status(now).BytesPerSecond)
	p.arrived.Store(400)
	s := p.Status(now.Add(2 * time.Second))
	require.EqualValues(t, 200, s.BytesPerSecond)
	require.EqualValues(t, 3, s.ETASeconds)
	p.fileDone(1)
	require.False(t, p.Ready())
	p.fileDone(1)
	require.True(t, p.Ready())

	p.Fail(string(make([]byte, 9000)), true)
	data, err := p.Status(now).Result()
	require.NoError(t, err)
	require.LessOrEqual(t, len(data), protocol.MaxResult)
	require.Contains(t, string(data), `"retryable":true`)
}

// Under a bandwidth limit few workers share it, so the first objects arrive early and not all at the end.
func TestBandwidthIsSharedByFew(t *testing.T) {
	for perSecond, want := range map[int64]int{0: 32, 1: 1, 512 * store.KiB: 2, store.MiB: 4, 8 * store.MiB: 32, store.GiB: 32} {
		b := &bandwidth{perSecond: perSecond}
		require.Equal(t, want, b.limitRequests(32), perSecond)
	}
}
