package logwrites

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// A Point is a disk that a power cut may have left. It holds the first Base entries of the log. If it is Torn, it
// also holds some of the writes between Base and End: a cache may write in any order, each block on its own.
type Point struct {
	Base int
	// End: when the power failed, all entries before this one had been logged.
	End  int
	Torn bool
	Seed uint64 // of the choice
}

func (p Point) String() string {
	if p.Torn {
		return fmt.Sprintf("torn between entries %d and %d", p.Base, p.End)
	}
	return fmt.Sprintf("before entry %d", p.Base)
}

// LastMark returns the last mark before the power failed, or false if there was none.
func (l *Log) LastMark(p Point) (string, bool) {
	for i := p.End - 1; i >= 0; i-- {
		if l.Entries[i].Has(Mark) {
			return l.Entries[i].Mark, true
		}
	}
	return "", false
}

// Points chooses n points after entry from, ordered by base: a third each after marks, after durable entries, and
// in between. If there are fewer of the first two kinds, it chooses all of them, and more in between.
func (l *Log) Points(from, n int, rng *rand.Rand) []Point {
	var marks, durable []Point
	for i := from; i < len(l.Entries); i++ {
		switch p := (Point{Base: i + 1, End: i + 1}); {
		case l.Entries[i].Has(Mark):
			marks = append(marks, p)
		case l.Entries[i].durable():
			durable = append(durable, p)
		}
	}
	points := append(spread(marks, n/3, rng), spread(durable, n/3, rng)...)
	spans := l.spans(from)
	for len(points) < n {
		points = append(points, between(spans[rng.IntN(len(spans))], rng))
	}
	slices.SortStableFunc(points, func(a, b Point) int { return a.Base - b.Base })
	return points
}

// spread chooses n of all, one from each of n parts of equal length.
func spread(all []Point, n int, rng *rand.Rand) []Point {
	if n >= len(all) {
		return all
	}
	chosen := make([]Point, 0, n)
	for i := range n {
		begin, end := i*len(all)/n, (i+1)*len(all)/n
		chosen = append(chosen, all[begin+rng.IntN(end-begin)])
	}
	return chosen
}

// A span is the entries between two flushes, including a write that was not durable.
type span struct{ begin, end int }

func (l *Log) spans(from int) (all []span) {
	now, loose := span{begin: from}, false
	for i := from; i <= len(l.Entries); i++ {
		if i < len(l.Entries) && !l.Entries[i].Has(Flush) {
			loose = loose || l.Entries[i].Sectors > 0 && !l.Entries[i].durable()
			continue
		}
		if now.end = i; loose {
			all = append(all, now)
		}
		now, loose = span{begin: i + 1}, false
	}
	return all
}

// between chooses a point in a span, with equal probability in the order of the log or torn.
//
// A torn point is just before the flush at the end completed, so the disk holds each FUA write in the span, and
// each mark was set: both may be younger than writes that come later in the log.
func between(s span, rng *rand.Rand) Point {
	if rng.IntN(2) == 0 {
		i := s.begin + rng.IntN(s.end-s.begin)
		return Point{Base: i + 1, End: i + 1}
	}
	return Point{Base: s.begin, End: s.end, Torn: true, Seed: rng.Uint64()}
}
