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

// harass kills node daemons and kubelets until stop is called.
func (b *bed) harass(ctx context.Context, h *history, seed uint64) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() {
		random := rand.New(rand.NewPCG(seed, 2))
		for {
			pause(ctx, 5*time.Second+time.Duration(random.Int64N(int64(15*time.Second))))
			h.keepPace(ctx)
			if ctx.Err() != nil {
				return
			}
			victim, node := "gc", b.nodes[random.IntN(len(b.nodes))]
			if random.IntN(4) == 0 {
				victim = "kubelet"
			}
			// A process that is not running at the moment cannot be killed.
			out, err := b.Node(context.WithoutCancel(ctx), node, "sh", "-c", "was=$(pgrep -x "+victim+") && kill -9 $was && echo killed || true")
			if err != nil {
				h.amiss("kill %s: %v", victim, err)
			} else if out != "" {
				h.count("killed: "+victim, 1)
			}
		}
	})
	return func() { cancel(); all.Wait() }
}

// Kills keep pace with the work, however slow the machine is: a kubelet that is killed again before it
// has handled its pods makes no progress, and claims wait for space that a daemon has not yet reported.
const (
	stepsForAKill  = 8
	longestToAKill = 2 * time.Minute
)

// keepPace waits until the workers have made progress, or seem to be stuck.
func (h *history) keepPace(ctx context.Context) {
	began := time.Now()
	steps := h.steps()
	for ctx.Err() == nil && h.steps() < steps+stepsForAKill && time.Since(began) < longestToAKill {
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
