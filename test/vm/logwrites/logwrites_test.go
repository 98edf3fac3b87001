package logwrites

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const sector = 512

// recording writes a log in the kernel's format.
type recording struct {
	bytes.Buffer
	entries int
}

func (r *recording) add(at, sectors int64, flags Flags, mark string, data byte) {
	head := make([]byte, sector)
	le := binary.LittleEndian
	le.PutUint64(head, uint64(at))
	le.PutUint64(head[8:], uint64(sectors))
	le.PutUint64(head[16:], uint64(flags))
	le.PutUint64(head[24:], uint64(len(mark)))
	copy(head[entrySize:], mark)
	r.Write(head)
	if flags&Discard == 0 {
		r.Write(bytes.Repeat([]byte{data}, int(sectors)*sector))
	}
	r.entries++
}

func (r *recording) log() []byte {
	super := make([]byte, sector)
	le := binary.LittleEndian
	le.PutUint64(super, magic)
	le.PutUint64(super[8:], version)
	le.PutUint64(super[16:], uint64(r.entries))
	le.PutUint32(super[24:], sector)
	return append(super, r.Bytes()...)
}

func (r *recording) read(t *testing.T) *Log {
	t.Helper()
	l, err := Read(bytes.NewReader(r.log()))
	require.NoError(t, err)
	return l
}

// memory is a disk of 64 blocks.
type memory [64 * block]byte

func (m *memory) WriteAt(b []byte, at int64) (int, error) { return copy(m[at:], b), nil }

func (m *memory) Discard(at, length int64) error {
	clear(m[at : at+length])
	return nil
}

// blocks returns the first byte of each of the first n blocks; a point stands for a zero.
func (m *memory) blocks(n int) string {
	var s strings.Builder
	for i := range n {
		s.WriteByte(max(m[i*block], '.'))
	}
	return s.String()
}

func TestRead(t *testing.T) {
	var r recording
	r.add(0, 0, Mark, "begun", 0)
	r.add(8, 16, Metadata, "", 'a')
	r.add(0, 0, Flush, "", 0)
	r.add(24, 8, FUA|Metadata, "", 'b')
	r.add(8, 8, Discard, "", 0)
	r.add(0, 0, Mark, "dm-log-writes-end", 0)
	l := r.read(t)
	require.EqualValues(t, sector, l.SectorSize)
	require.Len(t, l.Entries, 5)
	require.Equal(t, "begun", l.Entries[0].Mark)
	require.Equal(t, Entry{Sector: 8, Sectors: 16, Flags: Metadata, data: 3 * sector}, l.Entries[1])
	require.True(t, l.Entries[3].Has(FUA))
	var disk memory
	require.NoError(t, l.Replay(&disk, 0, 4))
	require.Equal(t, ".aab.", disk.blocks(5))
	require.NoError(t, l.Replay(&disk, 4, 5))
	require.Equal(t, "..ab.", disk.blocks(5))
}

func TestReadRefuses(t *testing.T) {
	var r recording
	r.add(0, 8, 0, "", 'a')
	good := r.log()
	for name, spoil := range map[string]func(b []byte) []byte{
		"magic":       func(b []byte) []byte { b[0]++; return b },
		"version":     func(b []byte) []byte { b[8]++; return b },
		"sectors of":  func(b []byte) []byte { b[24]++; return b },
		"flags":       func(b []byte) []byte { b[sector+17] = 1; return b },
		"than a disk": func(b []byte) []byte { b[sector+7] = 1; return b },
		"first":       func(b []byte) []byte { return b[:8] },
		"entry 0":     func(b []byte) []byte { return b[:sector+8] },
		"a mark":      func(b []byte) []byte { b[sector+16] = byte(Mark); b[sector+25] = 9; return b },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(bytes.NewReader(spoil(bytes.Clone(good))))
			require.ErrorContains(t, err, name)
		})
	}
}

// A write that was not flushed is behind the mark that was set when the write was complete, so a
// promise that was made too early is detected.
func TestMarkBeforeFlushIsSeen(t *testing.T) {
	var r recording
	r.add(0, 8, 0, "", 'a')
	r.add(0, 0, Flush, "", 0)
	r.add(0, 0, Mark, "a is there", 0)
	r.add(0, 0, Mark, "b is there", 0) // it is not, as the flush comes later
	r.add(8, 8, 0, "", 'b')
	r.add(0, 0, Flush, "", 0)
	l := r.read(t)
	seen := map[string]bool{}
	for _, p := range l.Points(0, 60, rand.New(rand.NewPCG(1, 1))) {
		var disk memory
		require.NoError(t, l.Replay(&disk, 0, p.Base))
		if p.Torn {
			require.NoError(t, l.Tear(&disk, p, nil))
		}
		mark, _ := l.LastMark(p)
		switch mark {
		case "a is there":
			require.Equal(t, "a.", disk.blocks(2), p)
		case "b is there":
			seen[disk.blocks(2)] = true
		}
	}
	require.Equal(t, map[string]bool{"a.": true, "ab": true}, seen)
}

func TestTear(t *testing.T) {
	var r recording
	r.add(0, 0, Flush, "", 0)
	r.add(0, 8, FUA, "", 'f')
	r.add(8, 24, 0, "", 'x')
	r.add(32, 8, 0, "", '1')
	r.add(40, 8, 0, "", '2')
	r.add(0, 8, Discard, "", 0)
	r.add(0, 0, Flush, "", 0)
	l := r.read(t)
	meta := func(at int64) bool { return at >= 4*block }
	loose, ordered := map[string]bool{}, map[string]bool{}
	for seed := range uint64(500) {
		p := Point{Base: 1, End: 6, Torn: true, Seed: seed}
		var disk, again, other memory
		require.NoError(t, l.Tear(&disk, p, meta))
		require.NoError(t, l.Tear(&again, p, meta))
		require.True(t, disk == again, "a seed says all") // require.Equal takes a minute with the race detector
		require.EqualValues(t, 'f', disk[0], "FUA is durable")
		loose[disk.blocks(4)] = true
		ordered[disk.blocks(6)[4:]] = true
		require.NoError(t, l.Tear(&other, p, nil))
		loose[other.blocks(6)[4:]] = true
	}
	for _, want := range []string{"f...", "fx..", "f.x.", "fx.x", "fxxx", "..", "1.", ".2", "12"} {
		require.Contains(t, loose, want)
	}
	require.Equal(t, map[string]bool{"..": true, "1.": true, "12": true}, ordered)
}

func TestPoints(t *testing.T) {
	var r recording
	for i := range int64(40) {
		r.add(i*8, 8, 0, "", 'a')
		r.add(0, 0, Flush, "", 0)
		r.add(i*8, 8, FUA, "", 'b')
		r.add(0, 0, Mark, "m", 0)
	}
	l := r.read(t)
	for _, n := range []int{30, 400} {
		points := l.Points(8, n, rand.New(rand.NewPCG(7, 0)))
		require.Len(t, points, n)
		require.Equal(t, points, l.Points(8, n, rand.New(rand.NewPCG(7, 0))))
		var torn, marks, durable int
		base := 0
		for _, p := range points {
			require.GreaterOrEqual(t, p.Base, base, "a disk is replayed only onwards")
			base = p.Base
			switch {
			case p.Torn:
				torn++
				require.Less(t, p.Base, p.End)
			case l.Entries[p.Base-1].Has(Mark):
				marks++
			case l.Entries[p.Base-1].durable():
				durable++
			}
		}
		require.GreaterOrEqual(t, marks, min(n/3, 38))
		require.GreaterOrEqual(t, durable, min(n/3, 2*38))
		require.Positive(t, torn)
	}
}
