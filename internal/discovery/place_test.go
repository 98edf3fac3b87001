package discovery

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/diskid"
	"github.com/flexlvm/flexlvm/internal/mountinfo"
)

// A path of another program's volume may lead to what was found through links, through another mount of the file system,
// or once something is created there.
func TestPlaces(t *testing.T) {
	p := newPlace(t)
	whole := p.make("whole")
	require.NoError(t, os.MkdirAll(filepath.Join(whole, "sub"), 0o755))
	p.make("wholesale")
	base := t.TempDir()
	for link, target := range map[string]string{"to": p.dir, "below": whole + "/sub", "loop": "loop", "off": base + "/none", "away": base + "/far/x"} {
		require.NoError(t, os.Symlink(target, filepath.Join(base, link)))
	}
	require.NoError(t, os.WriteFile(filepath.Join(base, "file"), nil, 0o600))
	other := *p.mounts[0]
	other.Minor++
	p.mounts[0] = &other
	p.mount(whole, "/srv/a")
	p.mount(filepath.Join(base, "again"), "/srv")
	p.mount(filepath.Join(base, "beside"), "/srv/b")
	for _, dir := range []string{"again", "beside"} {
		require.NoError(t, os.Mkdir(filepath.Join(base, dir), 0o755))
	}
	p.mount(filepath.Join(base, "far"), "/").FSType = "nfs4" // accessing it would give an error
	f := p.find(func(c *Class) { c.Sharing = BindMounts })["whole"]
	require.Empty(t, f.Problem)
	m := &Machine{finder: p.finder, reads: disk.NewReads(time.Minute)}
	for at, want := range map[string]bool{
		whole: true, whole + "/": true, whole + "/sub": true, whole + "/none": true, p.dir: true, "/": true, p.dir + "/wholesale": false,
		base + "/to/whole": true, base + "/to/whole/none/new": true, base + "/to/wholesale": false, base + "/to/none": false, base + "/to": true, base + "/below": true,
		base + "/again": true, base + "/again/a": true, base + "/again/a/new": true, base + "/again/ab": false, base + "/beside": false,
		base + "/off": false, base + "/file/x": false, base + "/far": false, base + "/far/x": false, base + "/away/x": false, base: false, "relative": false,
	} {
		places := m.Resolve(t.Context(), []string{"/nowhere", at})
		require.Equal(t, at, places[1].Path)
		is, err := f.IsAt(&places[1])
		require.NoError(t, err, at)
		require.Equal(t, want, is, at)
	}
	loop := m.Resolve(t.Context(), []string{base + "/loop"})
	_, err := f.IsAt(&loop[0])
	require.ErrorIs(t, err, unix.ELOOP)

	m.finder.Host.Mounts = func() ([]*mountinfo.Info, error) { return nil, errors.New("no mounts") }
	unknown := m.Resolve(t.Context(), []string{base + "/beside", whole})
	_, err = f.IsAt(&unknown[0])
	require.ErrorContains(t, err, "no mounts")
	is, err := f.IsAt(&unknown[1])
	require.NoError(t, err)
	require.True(t, is, "its path says it")
}

// A device is the same under any path, and a partition or the disk of one overlaps it.
func TestPlacesOfDevices(t *testing.T) {
	device := Found{Path: "/mnt/raw/a", Kind: Device, Number: 7, Disk: "naa.1"}
	mounted := Found{Path: "/mnt/fast/a", Kind: Filesystem, Number: 7, Root: "/", Disk: "fs-u", Aliases: []string{"naa.1"}}
	at := func(number uint64, id string, under ...string) *Place {
		return &Place{Path: "/dev/sdx", Resolved: "/dev/sdx", Number: number, Device: diskid.Names{ID: id, Aliases: under}}
	}
	for name, c := range map[string]struct {
		at   *Place
		want bool
	}{
		"the same":               {at(7, "naa.1"), true},
		"one without an ID":      {at(7, ""), true},
		"another path to it":     {at(8, "naa.1"), true},
		"a partition":            {at(8, "naa.1-part1"), true},
		"another":                {at(8, "naa.2"), false},
		"another without an ID":  {at(8, ""), false},
		"a directory on it":      {&Place{Path: "/x", Resolved: "/x", Number: 7, Root: "/x"}, true},
		"a directory on another": {&Place{Path: "/x", Resolved: "/x", Number: 8, Root: "/x"}, false},
		"nothing":                {&Place{Path: "/x", Resolved: "/x"}, false},
		"the entry":              {&Place{Path: "/mnt", Resolved: "/mnt"}, true},
	} {
		for _, f := range []Found{device, mounted} {
			is, err := f.IsAt(c.at)
			require.NoError(t, err)
			require.Equal(t, c.want, is, "%s: %s", name, f.Kind)
		}
	}
	is, err := device.IsAt(at(8, "dm-LVM-1", "naa.1"))
	require.NoError(t, err)
	require.True(t, is, "a mapping that is on it")
}

// A path on a disk that hangs does not stop the scan: whether it leads to a found disk stays unknown.
func TestPlacesOnADiskThatHangs(t *testing.T) {
	p := newPlace(t)
	hung := make(chan struct{})
	defer close(hung)
	reads := disk.NewReads(10 * time.Millisecond)
	m := &Machine{finder: p.finder, reads: reads}
	require.Error(t, reads.Check(t.Context(), "at /slow", func(context.Context) error { <-hung; return nil }))
	places := m.Resolve(t.Context(), []string{"/slow"})
	_, err := (&Found{Path: "/mnt/fast/a"}).IsAt(&places[0])
	require.ErrorIs(t, err, disk.ErrNoAnswer)
	require.Empty(t, m.Resolve(t.Context(), nil))
}
