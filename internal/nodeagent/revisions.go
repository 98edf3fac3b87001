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

// revisions detects an API server that has gone back in time: a list has an older resourceVersion than one that
// was seen before the list was requested. It may be used from several goroutines.
type revisions struct {
	mu     sync.Mutex
	newest string // resourceVersion; empty: none yet
	back   string // how the API server went back; empty: it has not
}

// note records a resourceVersion. Watches lag behind lists, so an older one proves nothing.
func (r *revisions) note(seen string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	order, err := resourceversion.CompareResourceVersion(seen, cmp.Or(r.newest, "1")) // the comparison fails before a watch has read anything
	if err == nil && order > 0 {
		r.newest = seen
	}
}

func (r *revisions) seen() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.newest
}

// compare records whether a list's resourceVersion is older than one that was seen before the request, and
// reports whether that is the first such list. A resourceVersion that cannot be compared counts as older.
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

// wentBack returns how the API server has gone back in time since the daemon started; empty if it has not.
// Objects that were created after the backup stay lost, even when the resourceVersions are as high again.
func (r *revisions) wentBack() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.back
}

// listVolumes lists the PersistentVolumes of the node, and detects whether the API server has gone back in
// time.
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
