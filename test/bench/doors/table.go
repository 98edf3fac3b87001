package doors

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// label returns name in a form that fits into an object's name.
func label(name string) string { return unfit.ReplaceAllString(strings.ToLower(name), "-") }

// table returns a line for each step, with the medians of all sides and the CSI driver's ratios.
func table(sides []*side) []string {
	head, rule := "| median |", "|---|"
	for _, s := range sides {
		head, rule = head+" "+s.name+" |", rule+"---|"
	}
	csi := named(sides, "CSI")
	compared := []*side{}
	for _, s := range sides {
		if s != csi {
			compared = append(compared, s)
			head, rule = head+" CSI ÷ "+s.name+" |", rule+"---|"
		}
	}
	lines := []string{head, rule}
	for _, step := range steps {
		line := "| " + step + " |"
		for _, s := range sides {
			line += " " + seconds(s.median(step)) + " |"
		}
		for _, s := range compared {
			line += " " + ratio(csi.median(step), s.median(step)) + " |"
		}
		lines = append(lines, line)
	}
	return lines
}

func named(sides []*side, name string) *side {
	for _, s := range sides {
		if s.name == name {
			return s
		}
	}
	return &side{name: name}
}

func seconds(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func ratio(ours, theirs time.Duration) string {
	if ours == 0 || theirs == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", float64(ours)/float64(theirs))
}

// beside returns the CSI driver's results against the targets relative to another driver; none without another
// driver.
func beside(sides []*side, other string) []string {
	if other == "" {
		return nil
	}
	lines := []string{""}
	for i, target := range []float64{0.7, 0.6} {
		r := float64(named(sides, "CSI").median(steps[i])) / float64(named(sides, other).median(steps[i]))
		verdict := "met"
		if r > target {
			verdict = "MISSED"
		}
		lines = append(lines, fmt.Sprintf("%s: the CSI driver ÷ %s: %.2f (target ≤ %.2f, %s)", steps[i], other, r, target, verdict))
	}
	return lines
}
