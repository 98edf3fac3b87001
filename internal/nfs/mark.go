package nfs

import (
	"fmt"
	"os"
	"path"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
)

// mark is what says that a directory is a volume's.
func (p place) mark(claim string) nfsmark.Mark {
	return nfsmark.Mark{Directory: p.name, PersistentVolume: p.volume, Claim: claim, Size: p.size}
}

// readMark returns the mark of the directory of a volume; marked is false if it has none.
func readMark(root *os.Root, p place) (m nfsmark.Mark, marked bool, err error) {
	m, marked, err = nfsmark.Read(root, p.volume)
	if err != nil || !marked {
		return m, false, err
	}
	if m.Directory != p.name || m.PersistentVolume != p.volume {
		return m, false, &nfsmark.ForeignError{Name: path.Join(nfsmark.Dir, p.volume), What: fmt.Sprintf("is the mark of directory %q of %q", m.Directory, m.PersistentVolume)}
	}
	return m, true, nil
}
