package nfs

import (
	"fmt"
	"os"
	"path"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
)

// mark returns the mark by which a directory is known to be a volume's.
func (p place) mark(claim string) nfsmark.Mark {
	return nfsmark.Mark{Directory: p.name, PersistentVolume: p.volume, Claim: claim, Cluster: p.cluster, Size: p.size}
}

// readMark returns the mark of a volume's directory; marked is false if it has none. The error is a
// *nfsmark.ForeignError if another cluster created the directory: a PersistentVolume may be copied from
// one cluster to another, where it has no claim and is released.
func readMark(root *os.Root, p place) (m nfsmark.Mark, marked bool, err error) {
	m, marked, err = nfsmark.Read(root, p.volume)
	if err != nil || !marked {
		return m, false, err
	}
	name := path.Join(nfsmark.Dir, p.volume)
	if m.Directory != p.name || m.PersistentVolume != p.volume {
		return m, false, &nfsmark.ForeignError{Name: name, What: fmt.Sprintf("is the mark of directory %q of %q", m.Directory, m.PersistentVolume)}
	}
	if m.Cluster != "" && m.Cluster != p.cluster {
		return m, false, &nfsmark.ForeignError{Name: name, What: fmt.Sprintf("is of another cluster, whose namespace kube-system has the UID %q; set the reclaim policy of this PersistentVolume to Retain, or take \"cluster\" out of the mark if that cluster is gone", m.Cluster)}
	}
	return m, true, nil
}
