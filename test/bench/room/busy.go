package room

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/test/bench/figure"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// spinning are pods that use all the processor time that they can get, with requests of a little more than half a
// processor.
const spinning = `
apiVersion: v1
kind: Pod
metadata: {name: spin-%[1]d}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: %[2]q, command: [sh, -c, 'while :; do :; done'], resources: {requests: {cpu: 300m}}}
---
`

// hold stops or continues the spinning pods, so that they do not slow down filling the pool.
func (b *bench) hold(ctx context.Context, signal string) error {
	out, err := b.Node(ctx, node, "sh", "-c", `n=0
		for p in /proc/[0-9]*; do
			tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q '^sh -c [w]hile :' || continue
			kill -`+signal+` ${p#/proc/}; n=$((n + 1))
		done
		[ $n = 2 ]`)
	if err != nil {
		return fmt.Errorf("send %s to what spins: %w: %s", signal, err, out)
	}
	return nil
}

// busy compares how long a claim on a full pool waits for space while other pods keep the processors busy: as
// shipped, and with a minimal CPU request and LVM's programs in the daemon's own cgroup, as before they had one of
// their own. It disables headroom, so that space has to be reclaimed.
func (b *bench) busy(ctx context.Context, rounds int) ([]string, error) {
	var pods strings.Builder
	for i := range 2 {
		fmt.Fprintf(&pods, spinning, i, cluster.BusyboxImage)
	}
	if _, err := b.KubectlInput(ctx, strings.NewReader(pods.String()), "apply", "-f", "-"); err != nil {
		return nil, err
	}
	if _, err := b.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/spin-0", "pod/spin-1", "--timeout=120s"); err != nil {
		return nil, err
	}
	var lines []string
	medians := map[bool][2]time.Duration{}
	for _, before := range []bool{true, false} {
		// A cgroup that delegates a controller can hold no processes. This keeps LVM's programs in the daemon's
		// cgroup.
		cpu, what, group := "100m", "as shipped", "echo -memory >cgroup.subtree_control; rmdir none"
		if before {
			cpu, what, group = "10m", "with 10m and LVM in the daemon's group", "mkdir none; until echo +memory >cgroup.subtree_control; do sleep .1; done"
		}
		if out, err := b.Node(ctx, node, "sh", "-c", "cd /sys/fs/cgroup/flexlvm; "+group); err != nil {
			return lines, fmt.Errorf("open or close the group of LVM's programs: %w: %s", err, out)
		}
		if err := b.configure(ctx, cpu, "--headroom=0"); err != nil {
			return lines, err
		}
		var made, ran []time.Duration
		for range rounds {
			room, running, err := b.roomOnce(ctx)
			if err != nil {
				return lines, err
			}
			b.say("processors busy, %s: room after %.1f s, Running after %.1f s", what, room.Seconds(), running.Seconds())
			made, ran = append(made, room), append(ran, running)
		}
		medians[before] = [2]time.Duration{figure.Median(made), figure.Median(ran)}
	}
	for i, what := range []string{"from a PersistentVolume on a full pool to its room", "from its claim and pod to Running"} {
		f := figure.Figure{
			Name: "processors busy, " + what + ", as shipped ÷ with 10m and LVM in the daemon's group",
			Ours: medians[false][i], Theirs: medians[true][i], Rounds: rounds, Target: 1,
		}
		lines = append(lines, f.String())
		b.say("%s", f)
	}
	return lines, nil
}

// roomOnce fills the pool. It measures the time from a new claim's binding until its space is reclaimed, and from
// the creation of the claim and its pod until the pod runs.
func (b *bench) roomOnce(ctx context.Context) (room, running time.Duration, err error) {
	side := b.side(ctx, 1, true)
	for _, step := range []func() error{func() error { return b.hold(ctx, "STOP") }, side.Before, func() error { return b.hold(ctx, "CONT") }} {
		if err := step(); err != nil {
			return 0, 0, err
		}
	}
	name := fmt.Sprintf("pod-%d", b.n)
	promised := make(chan time.Time, 1)
	watching, end := context.WithCancel(ctx)
	defer end()
	go func() {
		for watching.Err() == nil {
			claim, err := b.Client.CoreV1().PersistentVolumeClaims("default").Get(watching, name, metav1.GetOptions{})
			if err == nil && claim.Spec.VolumeName != "" {
				promised <- time.Now()
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	began := time.Now()
	if err := side.Run(); err != nil {
		return 0, 0, err
	}
	running = time.Since(began)
	at, err := b.evictedAt(ctx, began)
	if err != nil {
		return 0, 0, err
	}
	return at.Sub(<-promised), running, side.After()
}

// tell prints the times and reasons of the evictions since then.
func (b *bench) tell(ctx context.Context, since time.Time) error {
	gone, err := b.evictions(ctx, since)
	var all []string
	for _, e := range gone {
		all = append(all, fmt.Sprintf("%.1f s (%s)", e.at.Sub(since).Seconds(), e.reason))
	}
	b.say("evicted after %s", strings.Join(all, ", "))
	return err
}

// evictedAt returns when the daemon first evicted a volume since then.
func (b *bench) evictedAt(ctx context.Context, since time.Time) (time.Time, error) {
	gone, err := b.evictions(ctx, since)
	if err == nil && len(gone) == 0 {
		err = fmt.Errorf("the log of the node daemon shows no eviction since %s", since)
	}
	if err != nil {
		return time.Time{}, err
	}
	return gone[0].at, nil
}

// A gone volume was evicted.
type gone struct {
	at     time.Time
	reason string
}

// evictions returns the evictions since then from the daemon's log. The node's clock is this machine's.
func (b *bench) evictions(ctx context.Context, since time.Time) (out []gone, err error) {
	log, err := b.Kubectl(ctx, "-n", "flexlvm-system", "logs", "daemonset/flexlvm-gc", "--timestamps", "--since-time="+since.UTC().Format(time.RFC3339))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(log) {
		stamp, text, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil || !at.After(since) || !strings.Contains(text, "Volume evicted") {
			continue
		}
		_, reason, _ := strings.Cut(text, `"reason":"`)
		reason, _, _ = strings.Cut(reason, `"`)
		out = append(out, gone{at, reason})
	}
	return out, nil
}
