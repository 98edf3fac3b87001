package figure

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"
)

var highWater = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// PeakOf returns a process's peak memory in MiB, as last observed before it ended. The maximum that wait4 returns
// also includes the process that started it.
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
