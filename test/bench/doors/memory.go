package doors

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/flexlvm/flexlvm/test/bench/start"
)

// An occupant is a pod with the resident memory of its processes.
type occupant struct {
	namespace, name, kind string

	own     float64 // MiB: heap, stacks and other memory that no file backs
	program float64 // MiB: pages of its program's file, which the kernel can drop and read again
}

func (o occupant) resident() float64 { return o.own + o.program }

// resident returns the running pods of these namespaces.
func resident(ctx context.Context, b *start.Bed, namespaces []string) ([]occupant, error) {
	all := []occupant{}
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
			o, err := ofPod(ctx, b, f[0])
			if err != nil {
				return nil, fmt.Errorf("memory of %s: %w", f[1], err)
			}
			o.namespace, o.name, o.kind = namespace, f[1], f[2]
			all = append(all, o)
		}
	}
	return all, nil
}

// ofPod returns the resident memory of a pod's processes, except the test bed's own process that holds the pod's
// namespaces.
func ofPod(ctx context.Context, b *start.Bed, uid string) (o occupant, err error) {
	const script = `for p in /proc/[0-9]*; do
		grep -q "pod$1" $p/cgroup 2>/dev/null || continue
		[ "$(tr '\0' ' ' <$p/cmdline)" = "sleep 2147483647 " ] && continue
		awk '/^RssAnon:/ { own = $2 } /^RssFile:|^RssShmem:/ { file += $2 } END { print own, file }' $p/status
	done`
	out, err := b.Node(ctx, start.Node, "sh", "-c", script, "sh", uid)
	if err != nil {
		return o, err
	}
	fields := strings.Fields(out)
	if len(fields) == 0 || len(fields)%2 != 0 {
		return o, fmt.Errorf("no process of pod %s on %s: %q", uid, start.Node, out)
	}
	for i, field := range fields {
		kib, err := strconv.Atoi(field)
		if err != nil {
			return o, fmt.Errorf("read %q: %w", out, err)
		}
		if i%2 == 0 {
			o.own += float64(kib) / 1024
		} else {
			o.program += float64(kib) / 1024
		}
	}
	return o, nil
}

// memoryTable returns a line for each pod, and a line for each set of pods that an operator installs on every node,
// compared with the DaemonSets of another driver in the namespace other; no comparison if that is empty.
func memoryTable(all []occupant, other string) []string {
	lines := []string{"| pod | of | resident | of that its own | of that its program |", "|---|---|---|---|---|"}
	for _, o := range all {
		lines = append(lines, fmt.Sprintf("| %s | %s | %.1f MiB | %.1f MiB | %.1f MiB |", o.name, o.kind, o.resident(), o.own, o.program))
	}
	lines = append(lines, "", "| on every node | resident | ÷ "+cmp.Or(other, "–")+" | target |", "|---|---|---|---|")
	theirs := onEveryNode(all, other, "")
	for _, installed := range []struct {
		what   string
		of     []string
		target string
	}{
		{"both drivers and node daemon, as they are installed", []string{"flexlvm-csi-", "flexlvm-gc-", "flexlvm-installer-"}, "≤ 0.50"},
		{"CSI driver and node daemon", []string{"flexlvm-csi-", "flexlvm-gc-"}, ""},
		{"FlexVolume driver and node daemon", []string{"flexlvm-gc-", "flexlvm-installer-"}, ""},
	} {
		ours := onEveryNode(all, "flexlvm-system", installed.of...)
		compared := "–"
		if theirs > 0 {
			compared = fmt.Sprintf("%.2f", ours/theirs)
		}
		lines = append(lines, fmt.Sprintf("| %s | %.1f MiB | %s | %s |", installed.what, ours, compared, installed.target))
	}
	return append(lines, fmt.Sprintf("| all of %s | %.1f MiB | | |", cmp.Or(other, "–"), theirs))
}

// onEveryNode returns the resident memory, in MiB, of a namespace's DaemonSet pods whose names have one of these
// prefixes.
func onEveryNode(all []occupant, namespace string, prefixes ...string) (sum float64) {
	for _, o := range all {
		for _, prefix := range prefixes {
			if o.kind == "DaemonSet" && o.namespace == namespace && strings.HasPrefix(o.name, prefix) {
				sum += o.resident()
			}
		}
	}
	return sum
}
