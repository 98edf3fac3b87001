package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

func TestDecide(t *testing.T) {
	o := func(path, etag string, size int64) Object { return Object{Path: path, ETag: etag, Size: size} }
	entries := map[string]Entry{
		"same":    {Path: "same", ETag: "1", Bytes: 10},
		"changed": {Path: "changed", ETag: "1", Bytes: 10},
		"lost":    {Path: "lost", ETag: "1", Bytes: 10},
		"gone":    {Path: "gone", ETag: "1", Bytes: 10},
	}
	here := func(e Entry) (bool, error) { return e.Path != "lost", nil }
	p, err := decide([]Object{o("same", "1", 10), o("changed", "2", 10), o("lost", "1", 10), o("new", "1", 5)}, entries, here)
	require.NoError(t, err)
	require.Equal(t, []Object{o("changed", "2", 10), o("lost", "1", 10), o("new", "1", 5)}, p.fetch)
	require.Equal(t, []Entry{entries["same"]}, p.keep)
	require.Equal(t, []Entry{entries["gone"]}, p.gone)
	require.Equal(t, need{bytes: 10, inodes: 1}, p.replaced)

	_, err = decide([]Object{o("same", "1", 10)}, entries, func(Entry) (bool, error) { return false, errors.New("no look") })
	require.EqualError(t, err, "no look")
}

func TestSame(t *testing.T) {
	now := time.Now()
	a := Object{Size: 1, ETag: "x"}
	require.True(t, a.same(Object{Size: 1, ETag: "x", Modified: now}))
	require.False(t, a.same(Object{Size: 2, ETag: "x"}))
	require.False(t, a.same(Object{Size: 1, ETag: "y"}))
	require.False(t, a.same(Object{Size: 1, ETag: "x", Version: "v"}))
	require.True(t, Object{Modified: now}.same(Object{Modified: now.UTC()}))
	require.False(t, Object{Modified: now}.same(Object{Modified: now.Add(time.Second)}))
}

func TestArrange(t *testing.T) {
	names := func(order string, list ...string) (out []string) {
		objects := []Object{{Path: "b", Size: 1}, {Path: "c", Size: 3}, {Path: "a", Size: 3}, {Path: "d", Size: 2}}
		require.NoError(t, arrange(objects, order, list))
		for _, o := range objects {
			out = append(out, o.Path)
		}
		return out
	}
	require.Equal(t, []string{"a", "b", "c", "d"}, names(OrderName))
	require.Equal(t, []string{"b", "d", "a", "c"}, names(OrderSize))
	require.Equal(t, []string{"d", "b", "a", "c"}, names(OrderList, "d", "x", "b", "d"))
	require.Error(t, arrange(nil, "age", nil))
}

func TestSpans(t *testing.T) {
	const size = 100*mib + 1
	for _, have := range [][]span{
		nil, {{0, size}}, {{0, 16 * mib}}, {{5, 10}, {15, 5}, {50 * mib, mib}}, {{size - 1, 1}},
	} {
		all := append(append([]span(nil), have...), spans(size, have)...)
		notes := make([]note, len(all))
		total := int64(0)
		for i, s := range all {
			notes[i] = note{span: s}
			total += s.Length
			require.Positive(t, s.Length)
		}
		require.EqualValues(t, size, total)
		require.Len(t, disjoint(notes), len(all), "nothing twice")
	}
	require.Equal(t, 16*mib, spanSize(100*mib))
	require.Equal(t, 256*mib, spanSize(10_000*gib))
	require.Equal(t, []note{{span: span{0, 5}}, {span: span{5, 5}}},
		disjoint([]note{{span: span{5, 5}}, {span: span{0, 5}}, {span: span{3, 4}}, {span: span{9, 0}}}))
}

func TestNeeded(t *testing.T) {
	p := plan{
		fetch:    []Object{{Path: "a/b/x", Size: 1}, {Path: "a/y", Size: 8192}, {Path: "z", Size: 5000}},
		keep:     []Entry{{Path: "a/k", Bytes: 1}},
		gone:     []Entry{{Path: "g", Bytes: 4096}},
		replaced: need{bytes: 100},
	}
	none := func(Object) int64 { return 0 }
	require.Equal(t, need{bytes: 4096 + 8192 + 8192 + 100 - 100, inodes: 4}, p.needed(4096, none, false))
	require.Equal(t, need{bytes: 4096 + 8192 + 8192 - 4096, inodes: 4}, p.needed(4096, none, true))
	half := func(o Object) int64 { return o.Size / 2 }
	require.EqualValues(t, 4096+4096+4096, p.needed(4096, half, false).bytes)

	p.replaced.inodes = 2
	require.EqualValues(t, 4, p.needed(4096, none, false).inodes, "both stand beside the old ones for a time")
	many := plan{fetch: make([]Object, 100_000), replaced: need{inodes: 100_000}}
	require.EqualValues(t, unnamedFiles, many.needed(4096, none, false).inodes, "but not all at once")

	require.NoError(t, checkRoom(need{10, 10}, need{10, 10}))
	require.NoError(t, checkRoom(need{10, 10}, need{10, -1}))
	err := checkRoom(need{2 << 30, 1}, need{1 << 30, 10})
	require.EqualError(t, err, "no room: 2.0 GiB more are needed, and the destination has 1.0 GiB free (2147483648 and 1073741824 bytes); enlarge it or select less")
	require.Equal(t, fatal, classify(err))
	require.ErrorContains(t, checkRoom(need{1, 11}, need{10, 10}), "inodes for 10")
}

func TestOwnNeed(t *testing.T) {
	none := func(Object) int64 { return 0 }
	require.Equal(t, need{inodes: 9}, plan{}.own(8, none))
	small := Object{Path: "0123456789", ETag: "01234", Version: "01234", Size: mib}
	require.Equal(t, need{bytes: 2 * (lineBytes + 20), inodes: 2}, plan{fetch: []Object{small}}.own(1, none))
	large := Object{Path: "0123456789", Size: gib}
	require.EqualValues(t, (2+1024)*(lineBytes+10), plan{fetch: []Object{large}}.own(1, none).bytes)
	half := func(o Object) int64 { return o.Size / 2 }
	require.EqualValues(t, (2+512)*(lineBytes+10), plan{fetch: []Object{large}}.own(1, half).bytes)
}

// No line is longer than what is reckoned for it.
func TestLineBytes(t *testing.T) {
	now := time.Date(2026, 12, 31, 23, 59, 59, 123456789, time.FixedZone("", -3600))
	o := Object{Size: math.MaxInt64, Modified: now}
	c := check{kind: checkComposite, want: strings.Repeat("x", 64)}
	temp := "1023/" + strconv.FormatUint(math.MaxUint64, 36) + "-1000000000"
	e := finishedFile(o, c, temp).entry
	e.FetchedAt = now
	for _, line := range []any{e, noteOf(o, temp, span{math.MaxInt64, math.MaxInt64}, math.MaxUint64, c)} {
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
		want class
	}{
		{response("InternalError", 500), transient},
		{response("", 502), transient},
		{response("NotImplemented", 501), denied},
		{response("SlowDown", 503), transient},
		{response("", 429), transient},
		{response("RequestTimeout", 400), transient},
		{response("AccessDenied", 403), denied},
		{response("InvalidObjectState", 403), denied},
		{response("SignatureDoesNotMatch", 403), fatal},
		{response("InvalidAccessKeyId", 403), fatal},
		{response("NoSuchBucket", 404), fatal},
		{response("NoSuchKey", 404), gone},
		{response("", 404), gone},
		{response("PreconditionFailed", 412), changed},
		{response("", 416), changed},
		{fmt.Errorf("x: %w", errChanged), changed},
		{errStalled, transient},
		{errChecksum, transient},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, transient},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, transient},
		{fmt.Errorf("write: %w", syscall.ENOSPC), fatal},
		{fmt.Errorf("write: %w", syscall.EDQUOT), fatal},
		{syscall.EROFS, fatal},
		{fmt.Errorf("a %w", errInTheWay), denied},
		{readable(&os.PathError{Op: "open", Path: "a", Err: syscall.EACCES}), denied},
		{fmt.Errorf("%w: x", errNoCredentials), fatal},
	} {
		require.Equal(t, test.want, classify(test.err), "%v", test.err)
	}
	var e *Error
	require.ErrorAs(t, failed(response("", 500)), &e)
	require.True(t, e.Retryable)
	require.ErrorAs(t, failed(response("AccessDenied", 403)), &e)
	require.False(t, e.Retryable)
	require.ErrorAs(t, failed(fmt.Errorf("x: %w", errChecksum)), &e)
	require.False(t, e.Retryable, "the same bytes would come again")
	require.NoError(t, failed(nil))
}

func TestPauseGrowsWithinBounds(t *testing.T) {
	last := time.Duration(0)
	for n := 1; n < 80; n++ {
		low, high := pause(n, 0), pause(n, 1)
		require.Positive(t, low)
		require.LessOrEqual(t, high, mostPause)
		require.GreaterOrEqual(t, high, last)
		require.Equal(t, high/2, low)
		last = high
	}
	require.Equal(t, mostPause, last)
}

func TestGateNarrowsOnceForManyAndWidensAgain(t *testing.T) {
	g := newGate(8)
	now := time.Now()
	for range 8 {
		g.enter()
	}
	for range 8 {
		g.leave(true, now)
	}
	require.Equal(t, 4, g.limit)
	g.enter()
	g.leave(true, now.Add(2*time.Second))
	require.Equal(t, 2, g.limit)
	for range 200 {
		g.enter()
		g.leave(false, now)
	}
	require.Equal(t, 8, g.limit)
}

func TestWidthAndBuffers(t *testing.T) {
	require.Equal(t, 5, width(5, 1, 1))
	require.Equal(t, 1, width(0, 0, 0))
	require.Greater(t, width(0, 1000, 1000*16*kib), width(0, 2, 8*gib))
	for _, memory := range []int64{0, 1, 64 * kib, mib, 10 * mib, 128 * mib, gib} {
		for _, workers := range []int{1, 3, 32, 1024} {
			count, size := buffers(memory, workers)
			require.Positive(t, count)
			require.Zero(t, size%4096)
			if memory >= leastBuffer {
				require.LessOrEqual(t, int64(count)*size, memory)
			}
		}
	}
}

func TestPortion(t *testing.T) {
	for _, test := range []struct{ perSecond, buffer, want int64 }{
		{0, mib, mib}, {gib, mib, mib}, {2 * mib, mib, 64 * kib}, {2 * mib, 32 * kib, 32 * kib}, {200 * kib, mib, 4 * kib}, {1, mib, 4 * kib},
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
	p.kept(1)
	require.False(t, p.Ready())
	p.kept(1)
	require.True(t, p.Ready())

	p.Fail(string(make([]byte, 9000)), true)
	data, err := p.Status(now).Result()
	require.NoError(t, err)
	require.LessOrEqual(t, len(data), protocol.MaxResult)
	require.Contains(t, string(data), `"retryable":true`)
}

// Under a bound the first objects come soon, and not all at the end.
func TestBandwidthIsSharedByFew(t *testing.T) {
	for perSecond, want := range map[int64]int{0: 32, 1: 1, 512 * kib: 2, mib: 4, 8 * mib: 32, gib: 32} {
		b := &bandwidth{perSecond: perSecond}
		require.Equal(t, want, b.share(32), perSecond)
	}
}
