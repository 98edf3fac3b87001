package doors

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/flexlvm/flexlvm/test/bench/start"
)

// resident has a line for each pod of these namespaces, with what its processes have resident.
func resident(ctx context.Context, b *start.Bed, namespaces []string) ([]string, error) {
	lines := []string{"| pod | of | resident |", "|---|---|---|"}
	for _, namespace := range namespaces {
		out, err := b.Kubectl(ctx, "-n", namespace, "get", "pods", "--field-selector=status.phase=Running", "-o",
			`jsonpath={range .items[*]}{.metadata.uid} {.metadata.name} {.metadata.ownerReferences[0].kind}{"\n"}{end}`)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			if len(f) != 3 {
				return nil, fmt.Errorf("list pods: %q", line)
			}
			mib, err := ofPod(ctx, b, f[0])
			if err != nil {
				return nil, fmt.Errorf("memory of %s: %w", f[1], err)
			}
			lines = append(lines, fmt.Sprintf("| %s | %s | %.1f MiB |", f[1], f[2], mib))
		}
	}
	return lines, nil
}

// ofPod is what the processes of a pod have resident, in MiB; those that hold the namespaces of
// pods are the test bed's own.
func ofPod(ctx context.Context, b *start.Bed, uid string) (float64, error) {
	const script = `for p in /proc/[0-9]*; do
		grep -q "pod$1" $p/cgroup 2>/dev/null || continue
		[ "$(tr '\0' ' ' <$p/cmdline)" = "sleep 2147483647 " ] && continue
		awk '/^VmRSS:/ { print $2 }' $p/status
	done`
	out, err := b.Node(ctx, start.Node, "sh", "-c", script, "sh", uid)
	if err != nil {
		return 0, err
	}
	kib, seen := 0, false
	for _, field := range strings.Fields(out) {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, fmt.Errorf("read %q: %w", out, err)
		}
		kib, seen = kib+n, true
	}
	if !seen {
		return 0, fmt.Errorf("no process of pod %s on %s", uid, start.Node)
	}
	return float64(kib) / 1024, nil
}
