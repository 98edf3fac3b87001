//go:build cluster

package soak_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// work does one action after the other until every claim has been created.
func (b *bed) work(ctx context.Context, h *history) {
	for ctx.Err() == nil {
		what, c := h.next()
		var err error
		switch what {
		case end:
			return
		case wait:
			pause(ctx, 200*time.Millisecond)
			continue
		case create:
			err = b.create(ctx, h, c)
		case check:
			err = b.visit(ctx, h, c, toCheck, nil)
		case grow:
			if err = b.enlarge(ctx, h, c); err == nil {
				err = b.visit(ctx, h, c, toGrow, nil)
			}
		case remove:
			err = b.remove(ctx, h, c)
		}
		if err != nil && ctx.Err() == nil {
			h.amiss("claim %s: %v", c.name, err)
		}
		h.done(c)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func quantity(b volume.Bytes) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(int64(b), resource.BinarySI)}
}

func (b *bed) create(ctx context.Context, h *history, c *claim) error {
	_, err := b.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: c.name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &c.class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: quantity(c.size)},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	switch {
	case c.abandoned > 0:
		return b.abandon(ctx, h, c)
	case !c.growsInUse:
		return b.visit(ctx, h, c, toWrite, nil)
	}
	h.enlarging(c)
	h.count("grown in use", 1)
	enlarge := sync.OnceValue(func() error { return b.enlarge(ctx, h, c) })
	return b.visit(ctx, h, c, toWriteAndGrow, enlarge)
}

// abandon deletes a claim while its volume is being created or its pod starts, half of the time without
// waiting for the pod's end.
func (b *bed) abandon(ctx context.Context, h *history, c *claim) error {
	name := c.name + "-write"
	if _, err := b.client.CoreV1().Pods(namespace).Create(ctx, c.pod(name, toWrite), metav1.CreateOptions{}); err != nil {
		return err
	}
	pause(ctx, c.abandoned)
	if err := b.remove(ctx, h, c); err != nil {
		return err
	}
	h.count("abandoned", 1)
	var options metav1.DeleteOptions
	if c.abandoned%2 == 0 {
		options = *metav1.NewDeleteOptions(0)
	}
	return b.client.CoreV1().Pods(namespace).Delete(ctx, name, options)
}

func (b *bed) remove(ctx context.Context, h *history, c *claim) error {
	h.deleting(c)
	return b.client.CoreV1().PersistentVolumeClaims(namespace).Delete(ctx, c.name, metav1.DeleteOptions{})
}

func (b *bed) enlarge(ctx context.Context, h *history, c *claim) error {
	h.count("grown", 1)
	patch := fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":"%d"}}}}`, c.grown)
	_, err := b.client.CoreV1().PersistentVolumeClaims(namespace).Patch(ctx, c.name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// visit runs a pod that does something with a claim's volume, and checks its result. running, if any,
// is called once the pod runs. A pod whose container was ended from outside is created again, as a Job
// would.
func (b *bed) visit(ctx context.Context, h *history, c *claim, kind kind, running func() error) error {
	const tries = 6
	for try := range tries {
		name := fmt.Sprintf("%s-%s-%d", c.name, kind, time.Now().UnixMilli())
		said, failed, err := b.runPod(ctx, h, c.pod(name, kind), kind, running)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		if failed && said == "" {
			h.count("repeated", 1)
			pause(ctx, time.Duration(try)*time.Second)
			continue
		}
		if failed {
			return fmt.Errorf("pod %s on %s: %s", name, c.node, said)
		}
		return h.judge(c, kind, said)
	}
	return fmt.Errorf("%s: no pod came to its end in %d tries", kind, tries)
}

// judge compares what a pod has read with what was written.
func (h *history) judge(c *claim, kind kind, said string) error {
	var blob, all string
	var size volume.Bytes
	if _, err := fmt.Sscanf(said, "ok %s %s %d", &blob, &all, &size); err != nil {
		return fmt.Errorf("%s: %w: %q", kind, err, said)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case size != c.now:
		return fmt.Errorf("%s: its file system has %d bytes, and not %d", kind, size, c.now)
	case kind == toWrite || kind == toWriteAndGrow:
		c.blob, c.digest = blob, all
	case kind == toCheck && all != c.digest, blob != c.blob:
		return fmt.Errorf("%s: its data is not what was written", kind)
	}
	c.digest = all
	h.counts["verified"]++
	return nil
}

// runPod runs a pod to its end, and returns its message and whether it failed.
func (b *bed) runPod(ctx context.Context, h *history, pod *corev1.Pod, kind kind, running func() error) (said string, failed bool, err error) {
	pods := b.client.CoreV1().Pods(namespace)
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute) // pods wait for space, and a machine may be slow
	defer cancel()
	began := time.Now()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return "", false, err
	}
	defer func() {
		if deleted := pods.Delete(context.WithoutCancel(ctx), pod.Name, metav1.DeleteOptions{}); err == nil && !apierrors.IsNotFound(deleted) {
			err = deleted
		}
	}()
	ran := false
	for {
		now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return "", false, fmt.Errorf("pod %s has not come to its end in %s: %w", pod.Name, time.Since(began).Round(time.Second), err)
		}
		state := corev1.ContainerState{}
		if len(now.Status.ContainerStatuses) == 1 {
			state = now.Status.ContainerStatuses[0].State
		}
		if !ran && (state.Running != nil || state.Terminated != nil) {
			ran = true
			h.ran(kind, pod.Name, time.Since(began))
			if running != nil {
				if err := running(); err != nil {
					return "", false, err
				}
			}
		}
		if phase := now.Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
			if state.Terminated != nil { // else the message is the runtime's
				_, said, _ = strings.Cut(state.Terminated.Message, "said: ")
			}
			return strings.TrimSpace(said), phase == corev1.PodFailed, nil
		}
		pause(ctx, 250*time.Millisecond)
	}
}

// revisit checks the data of every live claim, and returns their number.
func (b *bed) revisit(ctx context.Context, h *history) int {
	live := h.living()
	slots := make(chan struct{}, 3)
	var all sync.WaitGroup
	for _, c := range live {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := b.visit(ctx, h, c, toCheck, nil); err != nil {
				h.amiss("claim %s: %v", c.name, err)
			}
		})
	}
	all.Wait()
	return len(live)
}
