package logwrites

import (
	"fmt"
	"io"
	"math/rand/v2"
)

// A Disk is written to.
type Disk interface {
	io.WriterAt
	// Discard makes nothing certain of what it spans.
	Discard(offset, length int64) error
}

// block is what a disk writes whole, or not at all.
const block = 4096

// Replay does to a disk what the entries from and following have done, before to.
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

// Tear does to a disk that holds a point's Base what else of the point is there. The
// writes that begin at a byte for which inOrder is true are there up to one of them,
// and none after that; inOrder may be nil.
func (l *Log) Tear(disk io.WriterAt, p Point, inOrder func(offset int64) bool) error {
	rng := rand.New(rand.NewPCG(p.Seed, 0))
	// Much is lost, or some is, or hardly anything.
	share := []float64{0.1, 0.5, 0.9}[rng.IntN(3)]
	last := p.Base + rng.IntN(p.End-p.Base+1)
	for i := p.Base; i < p.End; i++ {
		e := l.Entries[i]
		keep := func() bool { return rng.Float64() < share }
		switch {
		case e.Has(Discard):
			continue // it need not have happened
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

// copySome writes those blocks of an entry's data that keep is true for.
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

// copy writes the data of an entry from the byte at on, as much as buf holds.
func (l *Log) copy(disk io.WriterAt, e Entry, at int64, buf []byte) error {
	if _, err := l.source.ReadAt(buf, e.data+at); err != nil {
		return fmt.Errorf("read its data: %w", err)
	}
	_, err := disk.WriteAt(buf, e.Sector*l.SectorSize+at)
	return err
}
