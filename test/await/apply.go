package await

import "strings"

// Changed returns the lines of kubectl apply's output that report a change. kubectl always sends the selector of a
// PodDisruptionBudget, whose patch strategy is replace, and so never reports one as unchanged.
func Changed(output string) (changed []string) {
	for line := range strings.Lines(output) {
		if !strings.HasSuffix(strings.TrimSpace(line), " unchanged") && !strings.HasPrefix(line, "poddisruptionbudget.policy/") {
			changed = append(changed, line)
		}
	}
	return changed
}
