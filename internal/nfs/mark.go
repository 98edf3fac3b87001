package nfs

import (
	"fmt"
	"os"
	"path"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
)

// mark is what says of a directory that it is a volume's.
func (p place) mark(claim string) nfsmark.Mark {
	return nfsmark.Mark{Directory: p.name, PersistentVolume: p.volume, Claim: claim, Size: p.size}
}

// readMark reports whether the directory of a volume is marked as ours.
func readMark(root *os.Root, p place) (bool, error) {
	m, marked, err := nfsmark.Read(root, p.volume)
	if err != nil || !marked {
		return false, err
	}
	if m.Directory != p.name || m.PersistentVolume != p.volume {
		return false, &nfsmark.ForeignError{Name: path.Join(nfsmark.Dir, p.volume), What: fmt.Sprintf("is the mark of directory %q of %q", m.Directory, m.PersistentVolume)}
	}
	return true, nil
}
