//go:build cluster

package soak_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/stretchr/testify/require"
)

// Processes that are killed. Each is killed at least once, in this order, and then they are chosen at
// random.
var victims = []string{"gc", "kubelet"}

// harass kills node daemons and kubelets until stop is called, and until each has been killed.
func (b *bed) harass(ctx context.Context, h *history, s settings) (stop func()) {
	work, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() {
		random, p := rand.New(rand.NewPCG(s.seed, 2)), s.pace()
		for kills := 0; ctx.Err() == nil; {
			pause(work, p.pause(random))
			h.keepPace(work, p.steps)
			if work.Err() != nil && kills >= len(victims) {
				return
			}
			victim := victims[0]
			if kills < len(victims) {
				victim = victims[kills]
			} else if random.IntN(4) == 0 {
				victim = victims[1]
			}
			killed, err := b.kill(ctx, victim, b.nodes[random.IntN(len(b.nodes))])
			if err != nil {
				h.amiss("kill %s: %v", victim, err)
				return
			}
			if killed {
				h.count("killed: "+victim, 1)
				kills++
			}
		}
	})
	return func() { cancel(); all.Wait() }
}

// kill kills a process on a node, and reports whether it did. It waits for a process that is just being
// started again.
func (b *bed) kill(ctx context.Context, victim, node string) (bool, error) {
	out, err := b.Node(context.WithoutCancel(ctx), node, "sh", "-c",
		"for try in $(seq 50); do if was=$(pgrep -x "+victim+") && kill -9 $was; then echo killed; exit; fi; sleep 0.2; done")
	return out != "", err
}

// A pace is how soon the next process is killed. Kills keep pace with the work, however slow the machine
// is: a kubelet that is killed again before it has handled its pods makes no progress, and claims wait
// for space that a daemon has not yet reported.
type pace struct {
	least, most time.Duration // the pause before a kill
	steps       int           // of the workers, after the pause
}

// pace returns a faster pace for a few claims, so that their work does not end after one kill.
func (s settings) pace() pace {
	if s.claims < 50 {
		return pace{time.Second, 4 * time.Second, 3}
	}
	return pace{5 * time.Second, 20 * time.Second, 8}
}

func (p pace) pause(random *rand.Rand) time.Duration {
	return p.least + time.Duration(random.Int64N(int64(p.most-p.least)))
}

const longestToAKill = 2 * time.Minute

// keepPace waits until the workers have made progress, or seem to be stuck.
func (h *history) keepPace(ctx context.Context, progress int) {
	began := time.Now()
	steps := h.steps()
	for ctx.Err() == nil && h.steps() < steps+progress && time.Since(began) < longestToAKill {
		pause(ctx, 200*time.Millisecond)
	}
}

// follow updates the history with PersistentVolumes and the node daemons' events.
func (b *bed) follow(ctx context.Context, t *testing.T, h *history) {
	t.Helper()
	volumes := informers.NewSharedInformerFactory(b.client, 0)
	sawVolume := func(o any) { h.sawVolume(o.(*corev1.PersistentVolume)) }
	_, err := volumes.Core().V1().PersistentVolumes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: sawVolume, UpdateFunc: func(_, o any) { sawVolume(o) },
	})
	require.NoError(t, err)
	events := informers.NewSharedInformerFactoryWithOptions(b.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("source", "flexlvm-gc").String()
	}))
	_, err = events.Core().V1().Events().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { h.sawEvent(o.(*corev1.Event)) },
	})
	require.NoError(t, err)
	for _, f := range []informers.SharedInformerFactory{volumes, events} {
		f.Start(ctx.Done())
		f.WaitForCacheSync(ctx.Done())
	}
}

// progress prints the state now and then.
func (b *bed) progress(h *history, began time.Time, done <-chan struct{}) {
	tick := time.NewTicker(30 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			fmt.Printf("soak: %5.0f s: %s\n", time.Since(began).Seconds(), h.line())
		}
	}
}
