package nfs

import (
	"context"
	"fmt"
	"net/netip"
	"path"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

// A location is what a PersistentVolume mounts from an NFS server, in a form that can be compared.
type location struct {
	server, path string
	volume       string // name of the PersistentVolume
	uid          types.UID
}

// locationOf returns the location of a PersistentVolume of any driver; false if it is not known to be on an NFS server.
func locationOf(v *corev1.PersistentVolume) (location, bool) {
	server, dir := persistentvolume.NFSDirectory(v)
	if server == "" || dir == "" {
		return location{}, false
	}
	return location{volume: v.Name, uid: v.UID, server: canonicalServer(server), path: path.Clean("/" + dir)}, true
}

// canonicalServer returns the same string for different spellings of a host name or an address. Whether two names
// are of the same server is not known.
func canonicalServer(server string) string {
	server = withoutBrackets(server)
	if address, err := netip.ParseAddr(server); err == nil {
		return address.Unmap().String()
	}
	return strings.ToLower(strings.TrimSuffix(server, "."))
}

// String formats the location as mount(8) reads it.
func (l location) String() string { return Export{Server: l.server, Path: l.path}.String() }

// overlaps reports whether one of two locations is, or contains, the other.
func (l location) overlaps(other location) bool {
	return l.server == other.server && (isWithin(l.path, other.path) || isWithin(other.path, l.path))
}

func isWithin(inner, outer string) bool {
	return inner == outer || strings.HasPrefix(inner, strings.TrimSuffix(outer, "/")+"/")
}

// A survey is the latest list of all PersistentVolumes on NFS servers.
type survey struct {
	mu        sync.Mutex // held while a list is read, so that only one is read at a time
	began     time.Time  // zero: nothing has been listed
	locations []location
}

// refusedFor is how long a list may be used again to refuse a removal. Refused removals are retried, and without this
// each of them would list all PersistentVolumes from the API server.
const refusedFor = 10 * time.Second

// checkUnshared fails if another PersistentVolume names the directory of v, one that contains it, or one in it: pods
// may use the directory by that PersistentVolume. A removal is allowed only by a list that began after this call did.
// Calls that wait for one list share the next one.
func (p *Provisioner) checkUnshared(ctx context.Context, v *corev1.PersistentVolume) error {
	asked, s := p.Now(), &p.survey
	s.mu.Lock()
	defer s.mu.Unlock()
	if asked.Sub(s.began) < refusedFor {
		if err := s.refuse(v); err != nil {
			return err
		}
	}
	if !s.began.After(asked) {
		if err := p.list(ctx, s); err != nil {
			return fmt.Errorf("check whether another PersistentVolume names the directory: %w", err)
		}
	}
	return s.refuse(v)
}

// list replaces the survey. The caller holds its lock.
func (p *Provisioner) list(ctx context.Context, s *survey) error {
	began, locations := p.Now(), []location(nil)
	err := p.EachVolume(ctx, func(v *corev1.PersistentVolume) {
		if l, known := locationOf(v); known {
			locations = append(locations, l)
		}
	})
	if err != nil {
		return err
	}
	s.began, s.locations = began, locations
	return nil
}

// refuse fails if the survey has another PersistentVolume whose location overlaps that of v.
func (s *survey) refuse(v *corev1.PersistentVolume) error {
	own, known := locationOf(v)
	if !known {
		return fmt.Errorf("PersistentVolume %q does not name a directory of an NFS server", v.Name)
	}
	for _, other := range s.locations {
		if other.uid != v.UID && own.overlaps(other) {
			return fmt.Errorf("PersistentVolume %q names %s, so pods may use it there; nothing is changed: delete that PersistentVolume if nothing uses it, or set the reclaim policy of this one to Retain", other.volume, other)
		}
	}
	return nil
}

// begin returns the state of a directory that is to be disposed of. It fails if the directory would have to be renamed
// and another PersistentVolume names it. Nothing is in use under the name of a directory that has been renamed already
// or is not there, so then nothing is listed.
func (p *Provisioner) begin(ctx context.Context, v *corev1.PersistentVolume, at place) (finding, error) {
	found, err := p.find(ctx, at)
	if err == nil && found == inPlace {
		err = p.checkUnshared(ctx, v)
	}
	return found, err
}
