package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/flexlvm/flexlvm/test/bench/figure"
)

const (
	rarely = 3 // pods whose claim fits on few nodes
	// clockTick is the unit of the times in /proc/PID/stat, in seconds: USER_HZ is 100.
	clockTick = 0.01
)

// A placed pod is the durations, since the creation of the pod, until each step of its placement with a new claim.
type placed struct{ chosen, bound, assigned time.Duration }

// placement places pods with new claims, one after the other, with the scheduler and the controller manager running
// with their defaults: while all nodes have enough space, and while only a few have it.
func (b *bed) placement(ctx context.Context, nodes, pods int) ([]string, error) {
	if err := b.awake(ctx); err != nil {
		return nil, err
	}
	anywhere, used, err := b.place(ctx, fmt.Sprintf("any-%d", nodes), pods, "1Gi")
	if err != nil {
		return nil, err
	}
	for i := range rarely {
		if err := b.roomy(ctx, nodes-1-i); err != nil { // smaller clusters did not have these nodes
			return nil, err
		}
	}
	somewhere, usedRarely, err := b.place(ctx, fmt.Sprintf("few-%d", nodes), rarely, "15Ti")
	if err != nil {
		return nil, err
	}
	say := func(where string, all []placed, used float64) string {
		median := func(of func(placed) time.Duration) float64 {
			var times []time.Duration
			for _, p := range all {
				times = append(times, of(p))
			}
			return figure.Median(times).Seconds()
		}
		return fmt.Sprintf("a pod with a new claim at %d nodes, of which %s: a node chosen after %.2f s, its PersistentVolume there after %.2f s, on its node after %.2f s (medians of %d); %.2f s of the scheduler's processor time each",
			nodes, where, median(func(p placed) time.Duration { return p.chosen }), median(func(p placed) time.Duration { return p.bound }),
			median(func(p placed) time.Duration { return p.assigned }), len(all), used/float64(len(all)))
	}
	return []string{
		say("all have room", anywhere, used),
		say(fmt.Sprintf("%d have room", rarely), somewhere, usedRarely),
	}, errors.Join(b.cluster.Kill(ctx, "kube-scheduler"), b.cluster.Kill(ctx, "kube-controller-manager"))
}

// awake starts the scheduler and the controller manager, and waits until they have placed a first pod.
func (b *bed) awake(ctx context.Context) error {
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		if err := b.cluster.Run(ctx, name); err != nil {
			return err
		}
	}
	began := time.Now()
	_, _, err := b.place(ctx, fmt.Sprintf("first-%d", time.Now().Unix()), 1, "1Gi")
	fmt.Fprintf(b.log, "the scheduler and the controller manager are at work after %.0f s\n", time.Since(began).Seconds())
	return err
}

// roomy gives a node more space than the others have.
func (b *bed) roomy(ctx context.Context, node int) error {
	storage, err := b.storage.NodeStorage(ctx, nodeName(node))
	if err != nil {
		return err
	}
	return b.report(ctx, storage, 2*roomOfNode)
}

// place measures pods, and the scheduler's processor time in seconds.
func (b *bed) place(ctx context.Context, prefix string, n int, size string) (out []placed, used float64, err error) {
	before, err := b.used("kube-scheduler")
	if err != nil {
		return nil, 0, err
	}
	for i := range n {
		p, err := b.placeOne(ctx, fmt.Sprintf("%s-%d", prefix, i), size)
		if err != nil {
			return nil, 0, err
		}
		out = append(out, p)
		fmt.Fprintf(b.log, "%s-%d: a node chosen after %.2f s\n", prefix, i, p.chosen.Seconds())
	}
	after, err := b.used("kube-scheduler")
	return out, after - before, err
}

func (b *bed) placeOne(ctx context.Context, name, size string) (placed, error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	claims, err := b.client.CoreV1().PersistentVolumeClaims(space).Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return placed{}, err
	}
	defer claims.Stop()
	pods, err := b.client.CoreV1().Pods(space).Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return placed{}, err
	}
	defer pods.Stop()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &b.classes[0], AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
	}}
	if claim, err = b.client.CoreV1().PersistentVolumeClaims(space).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return placed{}, err
	}
	began := time.Now()
	if err := b.podOf(ctx, name, "default-scheduler"); err != nil {
		return placed{}, err
	}
	var p placed
	for p.assigned == 0 {
		select {
		case <-ctx.Done():
			return p, fmt.Errorf("wait until pod %s is placed: %w", name, ctx.Err())
		case event, open := <-claims.ResultChan():
			c, is := event.Object.(*corev1.PersistentVolumeClaim)
			if !open || !is {
				return p, fmt.Errorf("the watch of claim %s has ended: %v", name, event)
			}
			if c.Annotations[annotationNode] != "" && p.chosen == 0 {
				p.chosen = time.Since(began)
			}
		case event, open := <-pods.ResultChan():
			pod, is := event.Object.(*corev1.Pod)
			if !open || !is {
				return p, fmt.Errorf("the watch of pod %s has ended: %v", name, event)
			}
			if pod.Spec.NodeName != "" {
				p.assigned = time.Since(began)
			}
		}
	}
	_, seen, err := b.arrived.await(ctx, []string{"pvc-" + string(claim.UID)})
	p.bound = seen.Sub(began)
	return p, err
}

// used returns the processor time of a control plane program, in seconds.
func (b *bed) used(program string) (float64, error) {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, p := range processes {
		line, err := os.ReadFile("/proc/" + p.Name() + "/cmdline")
		if err != nil || !strings.HasSuffix(strings.Split(string(line), "\x00")[0], "/"+program) || !strings.Contains(string(line), b.cluster.Dir()+"/") {
			continue
		}
		stat, err := os.ReadFile("/proc/" + p.Name() + "/stat")
		if err != nil {
			return 0, err
		}
		// After the name, which may contain spaces: the state, and ten fields later utime and stime, see proc(5).
		at := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		user, err := strconv.ParseFloat(at[11], 64)
		if err != nil {
			return 0, err
		}
		system, err := strconv.ParseFloat(at[12], 64)
		return (user + system) * clockTick, err
	}
	return 0, fmt.Errorf("read the processor time of %s: it does not run", program)
}
