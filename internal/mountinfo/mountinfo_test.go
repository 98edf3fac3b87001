package mountinfo

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
	pod  = `91 22 253:4 /a\040b /data/with\040space\134\043 ro,nodev shared:8 master:2 - fuse.s3 host:/a\011b\012 rw,prjquota` + "\n"
)

func read(t *testing.T, text string) []*Info {
	t.Helper()
	all, err := Read(strings.NewReader(text), nil)
	require.NoError(t, err)
	return all
}

func TestRead(t *testing.T) {
	want := []*Info{
		{ID: 22, Major: 254, Root: "/", Mountpoint: "/", Options: "rw,relatime", FSType: "ext4", Source: "/dev/vda1", SuperOptions: "rw"},
		{ID: 91, Major: 253, Minor: 4, Root: "/a b", Mountpoint: `/data/with space\#`, Options: "ro,nodev", FSType: "fuse.s3", Source: "host:/a\tb\n", SuperOptions: "rw,prjquota"},
	}
	require.Equal(t, want, read(t, root+pod))
	some, err := Read(strings.NewReader(root+pod), func(i *Info) bool { return i.Major == 253 })
	require.NoError(t, err)
	require.Equal(t, want[1:], some)
	require.Empty(t, read(t, ""))
}

// Each line has a field that a tenant or an administrator made longer than moby's parser accepts, 64 KiB.
func TestReadLongLines(t *testing.T) {
	long := strings.Repeat("/long", 200_000)
	all := read(t, root+
		"90 22 253:3 "+long+" /pod rw shared:8 - xfs /dev/dm-3 rw\n"+
		"91 22 253:3 / "+long+" rw - xfs /dev/dm-3 rw\n"+
		"92 22 0:50 / /merged rw - overlay overlay rw,lowerdir="+long+"\n"+
		"93 22 0:51 / /spaces rw - fuse x rw,"+strings.Repeat("a ", 200_000)+"\n"+
		pod)
	require.Len(t, all, 6)
	require.Equal(t, Info{ID: 90, Major: 253, Minor: 3, Root: long[:maxRoot], Mountpoint: "/pod", Options: "rw", FSType: "xfs", Source: "/dev/dm-3", SuperOptions: "rw"}, *all[1])
	require.Equal(t, long[:maxField], all[2].Mountpoint)
	require.Equal(t, "/dev/dm-3", all[2].Source)
	require.True(t, strings.HasPrefix(all[3].SuperOptions, "rw,lowerdir=/long/"))
	require.Len(t, all[3].SuperOptions, maxField)
	require.Equal(t, "/spaces", all[4].Mountpoint)
	require.Equal(t, "/a b", all[5].Root)
}

// A line that cannot be read is never skipped: it may be the mount that the caller needs.
func TestReadFails(t *testing.T) {
	for name, text := range map[string]string{
		"few fields":    "36 35\n",
		"no separator":  strings.ReplaceAll(root, " - ", " "),
		"few after it":  "22 1 254:0 / / rw - ext4 /dev/vda1\n",
		"no device":     "22 1 254 / / rw - ext4 /dev/vda1 rw\n",
		"no number":     "x 1 254:0 / / rw - ext4 /dev/vda1 rw\n",
		"an empty line": "\n",
	} {
		_, err := Read(strings.NewReader(root+text+pod), nil)
		require.ErrorContains(t, err, "is not one of mountinfo", name)
	}
	_, err := Read(strings.NewReader(root+strings.TrimSuffix(pod, "\n")), nil)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, err = Read(io.MultiReader(strings.NewReader(root+"91 22 "+strings.Repeat("x", 10_000)), failing{}), nil)
	require.ErrorIs(t, err, io.ErrClosedPipe)
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestOwn(t *testing.T) {
	all, err := ReadSelf(func(i *Info) bool { return i.Mountpoint == "/proc" })
	require.NoError(t, err)
	require.NotEmpty(t, all)
	require.Equal(t, "proc", all[0].FSType)
}
