package nodeagent

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"
)

// revisions finds out whether the API server goes back in time: whether a list has an older resourceVersion
// than was seen before the list was asked for. It may be used from several goroutines.
type revisions struct {
	mu     sync.Mutex
	newest string // resourceVersion; empty: none was seen
	back   string // how it went back; empty: it has not
}

// note notes a resourceVersion that was seen. Watches lag behind lists, so an older one proves nothing.
func (r *revisions) note(seen string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	order, err := resourceversion.CompareResourceVersion(seen, cmp.Or(r.newest, "1")) // fails before a watch has read anything
	if err == nil && order > 0 {
		r.newest = seen
	}
}

func (r *revisions) seen() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.newest
}

// compare notes whether a list of this resourceVersion is older than one that was seen before it was asked
// for, and reports whether that is the first one. What cannot be compared counts as older.
func (r *revisions) compare(before, list string) (news bool) {
	if before == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(before, list)
	if err == nil && order <= 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	news = r.back == ""
	if news {
		r.back = fmt.Sprintf("resourceVersion %s after %s", list, before)
	}
	return news
}

// wentBack says how the API server has gone back in time since the daemon began; empty if it has not. What
// was made after the backup stays lost, also once the resourceVersions are as high again.
func (r *revisions) wentBack() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.back
}

// listVolumes lists the PersistentVolumes of the node, and notes whether the API server has gone back in time.
func (d *Daemon) listVolumes(ctx context.Context) (items []corev1.PersistentVolume, revision string, err error) {
	before := d.watches.revisions.seen()
	items, revision, err = d.api.Volumes(ctx, d.cfg.Node)
	if err != nil {
		return nil, "", err
	}
	if d.watches.revisions.compare(before, revision) {
		klog.FromContext(ctx).Error(nil, "The API server has gone back in time, as if it had been restored from a backup; this daemon evicts no orphan any more, and releases no volume of a claim that is ready", "how", d.watches.revisions.wentBack())
	}
	d.watches.revisions.note(revision)
	return items, revision, nil
}
