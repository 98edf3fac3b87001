package doors

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// label is a part of an object's name.
func label(name string) string { return unfit.ReplaceAllString(strings.ToLower(name), "-") }

// table has a line for each step, with the medians of all sides and the CSI driver's ratios.
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

// TopoLVM was measured once on a virtual node of this project, beside the FlexVolume driver and
// an emptyDir: nine rounds, medians. These are TopoLVM's seconds ÷ theirs then.
const (
	topolvmRuns         = 10.0 / 7.1
	topolvmRunsEmptyDir = 10.0 / 4.9
	topolvmAgain        = 5.2 / 3.0
)

// beside works out how far the CSI driver is from TopoLVM, which is not in this run: by way of
// what is in both.
func beside(sides []*side) []string {
	csi := named(sides, "CSI")
	line := func(step, by string, theirs, target float64) string {
		r := float64(csi.median(step)) / float64(named(sides, by).median(step)) / theirs
		verdict := "met"
		if r > target {
			verdict = "MISSED"
		}
		return fmt.Sprintf("%s: the CSI driver ÷ TopoLVM, by way of %s: %.2f (target ≤ %.2f, %s)", step, by, r, target, verdict)
	}
	return []string{
		line(steps[0], "FlexVolume", topolvmRuns, 0.7), line(steps[0], "emptyDir", topolvmRunsEmptyDir, 0.7),
		line(steps[1], "FlexVolume", topolvmAgain, 0.6),
	}
}
