package mount

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/mountinfo"
)

// Only in /dev does a node that is mounted stand for its device. A tenant can create nodes in a tmpfs, at any path, for
// example at that of another tenant's directory volume.
func TestPartsOfDev(t *testing.T) {
	const (
		devtmpfs = "0:6"
		emptyDir = "0:61"
	)
	for name, c := range map[string]struct {
		line string
		dev  uint64 // the file system at /dev
		want bool
	}{
		"a published node":                  {devtmpfs + " /dm-3 /pod/dev rw - devtmpfs udev rw", unix.Mkdev(0, 6), true},
		"/dev itself":                       {devtmpfs + " / /dev rw - devtmpfs udev rw", unix.Mkdev(0, 6), false},
		"where a tmpfs is at /dev":          {devtmpfs + " /dm-3 /pod/dev rw - tmpfs tmpfs rw", unix.Mkdev(0, 6), true},
		"in a container with its own /dev":  {devtmpfs + " /dm-3 /pod/dev rw - devtmpfs udev rw", unix.Mkdev(0, 70), true},
		"a node in a tenant's tmpfs":        {emptyDir + " /1 /pod/volume-subpaths/m/c/0 rw - tmpfs tmpfs rw", unix.Mkdev(0, 6), false},
		"at the path of a directory volume": {emptyDir + " /volumes/pvc-1/data /pod/volume-subpaths/m/c/0 rw - tmpfs tmpfs rw", unix.Mkdev(0, 6), false},
		"in a volume, with a plain /dev":    {"253:3 /1 /pod/volume-subpaths/m/c/0 rw - xfs /dev/dm-3 rw", unix.Mkdev(253, 3), false},
	} {
		all, err := mountinfo.Read(strings.NewReader("90 22 "+c.line+"\n"), nil)
		require.NoError(t, err, name)
		require.Equal(t, c.want, isPartOfDev(all[0], c.dev), name)
	}
}
