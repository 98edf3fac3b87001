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

// ClearAdvice returns how to clear a device with these signatures, if nobody needs what it holds. A physical volume may
// be in a volume group that LVM's devices file hides. Releases of LVM without --devicesfile have no such file.
func ClearAdvice(device, signatures string) string {
	advice := fmt.Sprintf("clear it with `wipefs --all %s`", device)
	if !strings.Contains(signatures, "LVM2_member") {
		return advice
	}
	return fmt.Sprintf("first check with `pvs --devicesfile '' %s` (or `pvs %[1]s`, if LVM does not know that option) that it is in no volume group whose volumes are needed, because LVM's devices file may hide the group; then %s", device, advice)
}
