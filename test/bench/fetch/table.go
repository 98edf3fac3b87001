package fetch

import (
	"fmt"
	"slices"
	"time"
)

// row is a set and each side's runs.
type row struct {
	set  set
	runs map[string][]usage
}

// median returns the median of a side's runs; 0 if it had none.
func (r row) median(side string, of func(usage) time.Duration) time.Duration {
	var all []time.Duration
	for _, u := range r.runs[side] {
		all = append(all, of(u))
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func wall(u usage) time.Duration    { return u.wall }
func cpu(u usage) time.Duration     { return u.cpu }
func serving(u usage) time.Duration { return u.server }

// mostMemory is the loader's memory target, in MiB.
const mostMemory = 256

// table returns the times and the clients' CPU; the last line is the peak memory over all runs.
func table(rows []row) []string {
	lines := []string{
		"| objects | checked by | fetch | rclone | s5cmd | aws s3 sync | cp | throughput ÷ rclone's | throughput ÷ s5cmd's |",
		"|---|---|---|---|---|---|---|---|---|",
	}
	for _, r := range rows {
		lines = append(lines, fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %s | %s |", r.set.name, r.set.check(),
			seconds(r.median(ours, wall)), seconds(r.median(rclone, wall)), seconds(r.median(s5cmd, wall)), seconds(r.median(aws, wall)), seconds(r.median(plain, wall)),
			r.ratio(rclone), r.ratio(s5cmd)))
	}
	lines = append(lines, "", "| CPU of the client | per | fetch | rclone | s5cmd | aws s3 sync | cp |", "|---|---|---|---|---|---|---|")
	for _, r := range rows {
		gibs, thousands := float64(r.set.bytes())/gib, float64(r.set.objects)/1000
		name := r.set.name + ", " + r.set.check()
		lines = append(lines, r.cpuLine(name, "GiB", gibs))
		if r.set.objects > 1 {
			lines = append(lines, r.cpuLine(name, "1,000 objects", thousands))
		}
	}
	lines = append(lines, "", "| processor time | fetch | its server | rclone | its server | both ÷ both | if fetch took none |", "|---|---|---|---|---|---|---|")
	for _, r := range rows {
		lines = append(lines, r.shareLine())
	}
	return append(lines, "", memory(rows))
}

// shareLine returns the processor time of client and server together, which limits the throughput if all processors
// are busy, and the ratio to rclone's.
func (r row) shareLine() string {
	client, server := r.median(ours, cpu), r.median(ours, serving)
	theirs := r.median(rclone, cpu) + r.median(rclone, serving)
	return fmt.Sprintf("| %s, %s | %s | %s | %s | %s | %.2f | %.2f |", r.set.name, r.set.check(), seconds(client), seconds(server),
		seconds(r.median(rclone, cpu)), seconds(r.median(rclone, serving)), float64(theirs)/float64(client+server), float64(theirs)/float64(server))
}

// ratio returns the loader's throughput as a multiple of another side's, and the target.
func (r row) ratio(side string) string {
	theirs := r.median(side, wall)
	if theirs == 0 {
		return ""
	}
	ratio := float64(theirs) / float64(r.median(ours, wall))
	switch target := r.set.targets[side]; {
	case target == 0:
		return fmt.Sprintf("%.2f", ratio)
	case ratio < target:
		return fmt.Sprintf("**%.2f** (≥ %.2f, MISSED)", ratio, target)
	default:
		return fmt.Sprintf("**%.2f** (≥ %.2f, met)", ratio, target)
	}
}

func (r row) cpuLine(name, unit string, units float64) string {
	line := fmt.Sprintf("| %s | %s |", name, unit)
	for _, side := range []string{ours, rclone, s5cmd, aws, plain} {
		line += " " + seconds(time.Duration(float64(r.median(side, cpu))/units)) + " |"
	}
	return line
}

// seconds is empty if nothing was measured.
func seconds(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

func memory(rows []row) string {
	peaks := map[string]float64{}
	for _, r := range rows {
		for side, runs := range r.runs {
			for _, u := range runs {
				peaks[side] = max(peaks[side], u.peak)
			}
		}
	}
	verdict := "met"
	if peaks[ours] > mostMemory {
		verdict = "MISSED"
	}
	return fmt.Sprintf("memory at most, of all runs: fetch %.0f MiB (target ≤ %d MiB, %s), rclone %.0f MiB, s5cmd %.0f MiB, aws %.0f MiB",
		peaks[ours], mostMemory, verdict, peaks[rclone], peaks[s5cmd], peaks[aws])
}
