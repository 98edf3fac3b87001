package figure

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"
)

var highWater = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// PeakOf is the most memory that a process has had, in MiB, as it was seen last
// before it ended. What wait4 tells is of the process that started it, too.
func PeakOf(pid int) float64 {
	for peak := 0.0; ; {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		match := highWater.FindSubmatch(status)
		if err != nil || match == nil {
			return peak
		}
		kib, err := strconv.Atoi(string(match[1]))
		if err != nil {
			return peak
		}
		peak = float64(kib) / 1024
		time.Sleep(10 * time.Millisecond)
	}
}
