package nodeagent_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (a *fakeAPI) watch(w http.ResponseWriter, r *http.Request, resource string) {
	own := &watcher{resource: resource, selects: a.selectorOf(r), events: make(chan any, 10000)}
	a.mu.Lock()
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		kind, version := "", "v1"
		switch resource {
		case "persistentvolumes":
			kind = "PersistentVolume"
			for _, pv := range a.volumes {
				if own.selects(pv) {
					own.events <- map[string]any{"type": "ADDED", "object": pv.DeepCopy()}
				}
			}
		case "pods":
			kind = "Pod"
			for _, pod := range a.pods {
				if own.selects(pod) {
					own.events <- map[string]any{"type": "ADDED", "object": pod.DeepCopy()}
				}
			}
		case "volumegroups":
			kind, version = "VolumeGroup", "flexlvm.io/v1"
			for _, g := range a.groups {
				own.events <- map[string]any{"type": "ADDED", "object": g.DeepCopy()}
			}
		case "volumediscoveries":
			kind, version = "VolumeDiscovery", "flexlvm.io/v1"
			if a.discovery != nil {
				own.events <- map[string]any{"type": "ADDED", "object": a.discovery.DeepCopy()}
			}
		case "nodestorages":
			kind, version = "NodeStorage", "flexlvm.io/v1"
			if a.storage != nil {
				own.events <- map[string]any{"type": "ADDED", "object": a.storage.DeepCopy()}
			}
		}
		own.events <- map[string]any{"type": "BOOKMARK", "object": map[string]any{
			"kind": kind, "apiVersion": version, "metadata": map[string]any{
				"resourceVersion": strconv.Itoa(a.version), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"},
			},
		}}
	}
	if a.brief(r, own) {
		a.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		for len(own.events) > 0 {
			_ = json.NewEncoder(w).Encode(<-own.events)
		}
		return
	}
	a.watchers = append(a.watchers, own)
	a.mu.Unlock()
	defer a.with(func() {
		a.watchers = slices.DeleteFunc(a.watchers, func(other *watcher) bool { return other == own })
	})
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-own.events:
			if json.NewEncoder(w).Encode(e) != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

// brief fills a short watch with the changes since its version, and a bookmark. It reports whether the watch is a
// short one. The caller holds the lock.
func (a *fakeAPI) brief(r *http.Request, own *watcher) bool {
	if seconds, err := strconv.Atoi(r.URL.Query().Get("timeoutSeconds")); err != nil || seconds > 10 {
		return false
	}
	if a.compacted {
		own.events <- map[string]any{"type": "ERROR", "object": apierrors.NewResourceExpired("too old resource version").ErrStatus}
		return true
	}
	from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	require.NoError(a.t, err)
	for _, c := range a.history {
		if c.version > from && c.resource == own.resource && own.selects(c.object) {
			own.events <- c.event
		}
	}
	if !a.unmarked {
		own.events <- map[string]any{"type": "BOOKMARK", "object": map[string]any{
			"kind": "PersistentVolume", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)},
		}}
	}
	return true
}
