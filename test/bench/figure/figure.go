// Package figure measures the times of two sides and computes their ratio.
package figure

import (
	"fmt"
	"os/exec"
	"slices"
	"time"
)

// A Figure is a ratio of two medians, whose sides were measured in turns in one run.
type Figure struct {
	Name   string
	Ours   time.Duration
	Theirs time.Duration
	Rounds int
	Target float64 // maximum of the ratio
}

// Ratio returns Ours ÷ Theirs.
func (f Figure) Ratio() float64 { return float64(f.Ours) / float64(f.Theirs) }

// String returns the figure's line in the table.
func (f Figure) String() string {
	verdict := "met"
	if f.Ratio() > f.Target {
		verdict = "MISSED"
	}
	return fmt.Sprintf("| %s | %s | %s | %.2f | ≤ %.2f | %s | %d |", f.Name, round(f.Ours), round(f.Theirs), f.Ratio(), f.Target, verdict, f.Rounds)
}

// Line returns the figure's line in a table of figures without targets.
func (f Figure) Line() string {
	return fmt.Sprintf("| %s | %s | %s | %.2f | %d |", f.Name, round(f.Ours), round(f.Theirs), f.Ratio(), f.Rounds)
}

// LineHeader is the header of such a table.
const LineHeader = "| figure | ours (median) | theirs (median) | ratio | rounds |\n|---|---|---|---|---|"

// Header is the header of the table.
const Header = "| figure | ours (median) | theirs (median) | ratio | target | | rounds |\n|---|---|---|---|---|---|---|"

func round(d time.Duration) time.Duration {
	if d > 10*time.Millisecond {
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(10 * time.Microsecond)
}

// A Side is one of two things to compare. Only Run is timed.
type Side struct {
	Before func() error
	Run    func() error
	After  func() error
}

// Compare runs both sides in turns, each first in every other round, so that other load on the machine slows both
// alike. The first round is a warm-up.
func Compare(name string, rounds int, target float64, ours, theirs Side) (Figure, error) {
	if _, err := CompareWarm(name, 1, target, ours, theirs, nil); err != nil {
		return Figure{}, err
	}
	return CompareWarm(name, rounds, target, ours, theirs, nil)
}

// CompareWarm is Compare without a warm-up. It passes each time to tell.
func CompareWarm(name string, rounds int, target float64, ours, theirs Side, tell func(ours bool, took time.Duration)) (Figure, error) {
	times := [2][]time.Duration{}
	sides := [2]Side{ours, theirs}
	for i := range rounds {
		for j := range sides {
			k := (i + j) % 2
			d, err := sides[k].once()
			if err != nil {
				return Figure{}, fmt.Errorf("%s: %w", name, err)
			}
			times[k] = append(times[k], d)
			if tell != nil {
				tell(k == 0, d)
			}
		}
	}
	return Figure{Name: name, Ours: Median(times[0]), Theirs: Median(times[1]), Rounds: rounds, Target: target}, nil
}

func (s Side) once() (time.Duration, error) {
	if s.Before != nil {
		if err := s.Before(); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	err := s.Run()
	took := time.Since(start)
	if err == nil && s.After != nil {
		err = s.After()
	}
	return took, err
}

// Median returns the middle of the times.
func Median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2]
}

// Command returns a step that runs a program, which must succeed.
func Command(args ...string) func() error {
	return func() error {
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, out)
		}
		return nil
	}
}
