package control

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// arrivals knows when each PersistentVolume was first seen, of whichever side.
type arrivals struct {
	mu   sync.Mutex
	at   map[string]time.Time
	some chan struct{} // closed at the next one
}

func watchArrivals(ctx context.Context, client kubernetes.Interface) (*arrivals, error) {
	a := &arrivals{at: map[string]time.Time{}, some: make(chan struct{})}
	informer := informers.NewSharedInformerFactory(client, 0).Core().V1().PersistentVolumes().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.at[obj.(*corev1.PersistentVolume).Name] = time.Now()
		close(a.some)
		a.some = make(chan struct{})
	}})
	if err != nil {
		return nil, fmt.Errorf("watch PersistentVolumes: %w", err)
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, errors.New("watch PersistentVolumes: the API server shows none")
	}
	return a, nil
}

// await waits until all have been seen, and tells when the first and the last were.
func (a *arrivals) await(ctx context.Context, names []string) (first, last time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	for i := 0; i < len(names); {
		a.mu.Lock()
		at, seen := a.at[names[i]]
		some := a.some
		a.mu.Unlock()
		if seen {
			if i == 0 || at.Before(first) {
				first = at
			}
			if at.After(last) {
				last = at
			}
			i++
			continue
		}
		select {
		case <-ctx.Done():
			return first, last, fmt.Errorf("wait for PersistentVolumes: %d of %d have come: %w", i, len(names), ctx.Err())
		case <-some:
		}
	}
	return first, last, nil
}
