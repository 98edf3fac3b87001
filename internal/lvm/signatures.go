package lvm

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/utils/exec"
)

// Signatures returns the signatures that wipefs finds on a device: a line for each, with its offset
// and its kind. An empty result proves nothing.
func Signatures(ctx context.Context, run exec.Interface, device string) ([]string, error) {
	out, err := run.CommandContext(ctx, "wipefs", "--no-act", "--parsable", "--", device).Output()
	if err != nil {
		return nil, fmt.Errorf("look for signatures on %s: %w", device, err)
	}
	return signatures(string(out)), nil
}

// signatures returns the lines of wipefs --parsable without the heading.
func signatures(out string) []string {
	var found []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			found = append(found, line)
		}
	}
	return found
}
