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

// arrivals records when each PersistentVolume was first observed to be created, by either side, or to be deleted.
type arrivals struct {
	mu   sync.Mutex
	at   map[string]time.Time
	some chan struct{} // closed at the next one
}

func newArrivals() *arrivals {
	return &arrivals{at: map[string]time.Time{}, some: make(chan struct{})}
}

func (a *arrivals) see(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at[name] = time.Now()
	close(a.some)
	a.some = make(chan struct{})
}

// watchArrivals returns the times of created and of deleted PersistentVolumes.
func watchArrivals(ctx context.Context, client kubernetes.Interface) (come, gone *arrivals, err error) {
	come, gone = newArrivals(), newArrivals()
	informer := informers.NewSharedInformerFactory(client, 0).Core().V1().PersistentVolumes().Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { come.see(obj.(*corev1.PersistentVolume).Name) },
		DeleteFunc: func(obj any) {
			if v, ok := obj.(*corev1.PersistentVolume); ok {
				gone.see(v.Name)
			}
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("watch PersistentVolumes: %w", err)
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, nil, errors.New("watch PersistentVolumes: the API server shows none")
	}
	return come, gone, nil
}

// await waits until all have been observed, and returns the times of the first and the last.
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
