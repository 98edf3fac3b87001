package logwrites

import (
	"fmt"
	"io"
	"math/rand/v2"
)

// A Disk is the target of a replay.
type Disk interface {
	io.WriterAt
	// Discard leaves the content of the range undefined.
	Discard(offset, length int64) error
}

// block is the unit that a disk writes atomically.
const block = 4096

// Replay applies the entries from from, up to but not including to, to a disk.
func (l *Log) Replay(disk Disk, from, to int) error {
	buf := make([]byte, 1<<20)
	for i := from; i < to; i++ {
		e := l.Entries[i]
		begin, length := e.Sector*l.SectorSize, e.Sectors*l.SectorSize
		if e.Has(Discard) {
			if err := disk.Discard(begin, length); err != nil {
				return fmt.Errorf("replay entry %d: %w", i, err)
			}
			continue
		}
		for at := int64(0); at < length; at += int64(len(buf)) {
			if err := l.copy(disk, e, at, buf[:min(int64(len(buf)), length-at)]); err != nil {
				return fmt.Errorf("replay entry %d: %w", i, err)
			}
		}
	}
	return nil
}

// Tear adds a point's torn writes to a disk that holds the point's Base. The writes whose offset satisfies inOrder
// are kept up to a random one, and none after it; inOrder may be nil.
func (l *Log) Tear(disk io.WriterAt, p Point, inOrder func(offset int64) bool) error {
	rng := rand.New(rand.NewPCG(p.Seed, 0))
	// Most writes are lost, half of them, or hardly any.
	share := []float64{0.1, 0.5, 0.9}[rng.IntN(3)]
	last := p.Base + rng.IntN(p.End-p.Base+1)
	for i := p.Base; i < p.End; i++ {
		e := l.Entries[i]
		keep := func() bool { return rng.Float64() < share }
		switch {
		case e.Has(Discard):
			continue // it need not have taken effect
		case e.Has(FUA):
			keep = func() bool { return true }
		case inOrder != nil && inOrder(e.Sector*l.SectorSize):
			keep = func() bool { return i < last }
		}
		if err := l.copySome(disk, e, keep); err != nil {
			return fmt.Errorf("replay entry %d: %w", i, err)
		}
	}
	return nil
}

// copySome writes the blocks of an entry's data for which keep returns true.
func (l *Log) copySome(disk io.WriterAt, e Entry, keep func() bool) error {
	begin, length := e.Sector*l.SectorSize, e.Sectors*l.SectorSize
	buf := make([]byte, block)
	for at := int64(0); at < length; {
		n := min(block-(begin+at)%block, length-at)
		if keep() {
			if err := l.copy(disk, e, at, buf[:n]); err != nil {
				return err
			}
		}
		at += n
	}
	return nil
}

// copy writes len(buf) bytes of an entry's data, from the byte at.
func (l *Log) copy(disk io.WriterAt, e Entry, at int64, buf []byte) error {
	if _, err := l.source.ReadAt(buf, e.data+at); err != nil {
		return fmt.Errorf("read its data: %w", err)
	}
	_, err := disk.WriteAt(buf, e.Sector*l.SectorSize+at)
	return err
}
