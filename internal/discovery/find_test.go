package discovery

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/mountinfo"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A place is the directory of a class on a fake host.
type place struct {
	t      *testing.T
	dir    string
	number uint64 // of the device that the directory is really on
	mounts []*mountinfo.Info
	uuid   string
	under  []string // IDs of the devices below the device
	start  volume.Bytes
	whole  []disk.Disk
	asked  int
	finder finder
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, unix.Stat(dir, &st))
	p := &place{t: t, dir: dir, number: st.Dev, uuid: "u-1"}
	p.finder = finder{Host: host{
		Mounts: func() ([]*mountinfo.Info, error) { return p.mounts, nil },
		Device: func(n uint64) (disk.Device, error) {
			if n != p.number {
				return disk.Device{}, errors.New("no such device")
			}
			return disk.Device{Path: "/dev/sdx", Number: n, ID: "naa.5000", Under: p.under, Start: p.start, Size: 1 << 30}, nil
		},
		Number: func(string) (uint64, error) { return p.number, nil },
		Disks:  func() ([]disk.Disk, error) { return p.whole, nil },
		UUID: func(context.Context, string) (string, error) {
			p.asked++
			return p.uuid, nil
		},
	}}
	p.mount("/", "/")
	return p
}

func (p *place) mount(at, root string) *mountinfo.Info {
	m := &mountinfo.Info{ID: 10 + len(p.mounts), Major: int(unix.Major(p.number)), Minor: int(unix.Minor(p.number)), Root: root, Mountpoint: at, FSType: "xfs", Options: "rw"}
	p.mounts = append(p.mounts, m)
	return m
}

func (p *place) make(name string) string {
	p.t.Helper()
	at := filepath.Join(p.dir, name)
	require.NoError(p.t, os.Mkdir(at, 0o755))
	return at
}

func (p *place) find(change ...func(*Class)) map[string]Found {
	p.t.Helper()
	c := Class{Name: "fast", Directory: p.dir}
	for _, f := range change {
		f(&c)
	}
	all, unseen, err := p.finder.Find(p.t.Context(), []Class{c})
	require.NoError(p.t, err)
	require.Empty(p.t, unseen)
	out := map[string]Found{}
	for _, f := range all {
		out[filepath.Base(f.Path)] = f
	}
	return out
}

func TestFind(t *testing.T) {
	p := newPlace(t)
	p.mount(p.make("whole"), "/")
	p.mounts = p.mounts[1:] // the file system is mounted nowhere else
	require.NoError(t, os.Symlink(t.TempDir(), filepath.Join(p.dir, "link")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(p.dir, "dangling")))
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "file"), nil, 0o600))
	p.make("plain")
	all := p.find()
	require.Len(t, all, 5)
	whole := all["whole"]
	require.Equal(t, Found{Class: "fast", Path: p.dir + "/whole", Kind: Filesystem, Disk: "fs-u-1", Aliases: []string{"naa.5000"}, Size: whole.Size, Number: p.number, Root: "/", Mounted: true, Mount: whole.Mount, Inode: whole.Inode, deviceID: "naa.5000"}, whole)
	require.Positive(t, whole.Size)
	require.Positive(t, whole.Mount)
	require.Positive(t, whole.Inode)
	for name, says := range map[string]string{
		"link": "but not to a block device", "dangling": "whose target does not exist", "file": "neither a directory nor a block device", "plain": "it is a plain directory",
	} {
		require.Contains(t, all[name].Problem, says, name)
		require.Empty(t, all[name].Disk, name)
	}
	p.find()
	require.Equal(t, 1, p.asked, "a disk is asked once in the life of a mount")
	require.Contains(t, p.find(func(c *Class) { c.Block = true })["whole"].Problem, "volumeMode is Block")
	for pattern, names := range map[string][]string{"w*": {"whole"}, "w*,li?k": {"whole", "link"}, "w*,li?k,none*": {"whole", "link"}, "none,": nil, "[w,l]h*,x": {"whole"}, `l\ink,no\,ne`: {"link"}} {
		require.ElementsMatch(t, names, slices.Collect(maps.Keys(p.find(func(c *Class) { c.Pattern = pattern }))), pattern)
	}
}

func TestFindOfDirectories(t *testing.T) {
	p := newPlace(t)
	p.mount(p.make("a"), "/srv/a")
	p.mount(p.make("b"), "/srv/b")
	require.Contains(t, p.find()["a"].Problem, "directories: BindMounts")
	bound := func(c *Class) { c.Sharing = BindMounts }
	all := p.find(bound)
	require.Empty(t, all["a"].Problem)
	require.Equal(t, "fs-u-1:/srv/a", all["a"].Disk)
	require.Equal(t, Directory, all["a"].Kind)
	p.make("plain")
	require.Contains(t, p.find(bound)["plain"].Problem, "plain directory")
	plain := p.find(func(c *Class) { c.Sharing = AllDirectories })["plain"]
	require.Empty(t, plain.Problem)
	require.Equal(t, "fs-u-1:"+p.dir+"/plain", plain.Disk)

	p.make(lostAndFound)
	all = p.find(func(c *Class) { c.Sharing = AllDirectories })
	lost := all[lostAndFound]
	require.ErrorContains(t, lost.CheckNew(), "a repair of that puts files there")
	require.Empty(t, lost.Problem, "a PersistentVolume of an earlier release stays")
	require.Equal(t, Directory, lost.Kind)
	require.Equal(t, "fs-u-1:"+p.dir+"/lost+found", lost.Disk)
	p.mount(filepath.Join(p.dir, lostAndFound), "/srv/c")
	lost = p.find(bound)[lostAndFound]
	require.Empty(t, lost.Problem)
	require.NoError(t, lost.CheckNew(), "a directory is mounted there")

	p.mount(p.make("below"), "/srv/a/below")
	all = p.find(bound)
	for _, name := range []string{"a", "below"} {
		require.Contains(t, all[name].Problem, "is the same disk or file system", name)
	}
	require.Empty(t, all["b"].Problem)
}

func TestFindOfMountsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		make func(p *place, at string)
		says string
	}{
		"read-only":    {func(p *place, at string) { p.mount(at, "/").Options = "ro,relatime" }, "read-only"},
		"two on one":   {func(p *place, at string) { p.mount(at, "/"); p.mount(at, "/") }, "2 file systems are mounted here"},
		"of a server":  {func(p *place, at string) { p.mount(at, "/").FSType = "nfs4" }, "of type nfs4 is not on a disk"},
		"of a process": {func(p *place, at string) { p.mount(at, "/").FSType = "fuse.sshfs" }, "of type fuse.sshfs is not on a disk"},
		"without UUID": {func(p *place, at string) { p.uuid = ""; p.mount(at, "/") }, "has no UUID"},
		"of no device": {func(p *place, at string) { p.mount(at, "/").Minor++ }, "cannot be distinguished from others by its device"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			c.make(p, p.make("x"))
			require.Contains(t, p.find()["x"].Problem, c.says)
		})
	}
}

// A mapping, or the file system on it, has the names of the disks below it.
func TestFindOfMappings(t *testing.T) {
	p := newPlace(t)
	p.under = []string{"naa.1", "t10.ATA_QEMU_HARDDISK_QM00001", "naa.2"}
	p.mount(p.make("whole"), "/")
	require.Equal(t, []string{"naa.5000", "naa.1", "naa.2"}, p.find()["whole"].Aliases)
	mapping := Found{Path: "/mnt/raw/a"}
	require.NoError(t, p.finder.inspectDevice(&mapping))
	require.Equal(t, []string{"naa.1", "naa.2"}, mapping.Aliases, "other machines have a disk of the same ID")
}

// The end of a file system's partition is recorded, not that of the file system, behind which its log or unused bytes are.
func TestFindOfPartitions(t *testing.T) {
	p := newPlace(t)
	p.start = volume.MiB
	p.mount(p.make("whole"), "/")
	mounted, part := p.find()["whole"], Found{Path: "/mnt/raw/a"}
	require.NoError(t, p.finder.inspectDevice(&part))
	for _, f := range []*Found{&mounted, &part} {
		require.Equal(t, Entry{Start: 1 << 20, Size: 1 << 30}, Entry{}.at(f))
	}
	require.NotEqual(t, part.Size, mounted.Size)
	p.start = 0
	mounted = p.find()["whole"]
	require.Zero(t, Entry{Start: 1 << 20, Size: 1 << 30}.at(&mounted), "it is on a whole disk now")
}

// If the directory of a class cannot be listed, the class is unseen, which does not mean
// that its volumes are gone, and other classes are still listed. A node without the
// directory has no volumes of the class.
func TestFindOfClassesThatCannotBeScanned(t *testing.T) {
	p := newPlace(t)
	at := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(p.dir, at))
	p.make("a")
	good := Class{Name: "good", Directory: p.dir}
	problem := func(bad Class) error {
		bad.Name = "bad"
		found, unseen, err := p.finder.Find(t.Context(), []Class{bad, good})
		require.NoError(t, err)
		require.Len(t, found, 1)
		require.Equal(t, "good", found[0].Class)
		require.NoError(t, unseen["good"])
		return unseen["bad"]
	}
	require.ErrorContains(t, problem(Class{Directory: at}), "is a link to "+p.dir)
	require.ErrorContains(t, problem(Class{Directory: p.dir, Pattern: "[a"}), `namePattern "[a"`)
	require.ErrorContains(t, problem(Class{Directory: p.dir, Pattern: "good*,[a"}), `namePattern "good*,[a"`)
	for _, of := range []string{"/", "/var/lib", "/var/lib/kubelet/pods", "/var/lib/flexlvm", "/proc/1", "/dev", "/dev/mapper"} {
		require.ErrorContains(t, problem(Class{Directory: of}), "directory "+of+" is, contains or lies in /", of)
	}
	require.NoError(t, problem(Class{Directory: "/there/is/none"}))
	far := filepath.Join(t.TempDir(), "far")
	p.mount(far, "/").FSType = "nfs4" // the path does not exist, so accessing it would give another error
	for _, of := range []string{far, filepath.Join(far, "disks")} {
		require.ErrorContains(t, problem(Class{Directory: of}), "is on a file system of kind nfs4")
	}
	p.finder.Host.Mounts = func() ([]*mountinfo.Info, error) { return nil, errors.New("no mounts") }
	_, _, err := p.finder.Find(t.Context(), []Class{good})
	require.ErrorContains(t, err, "no mounts")
}

// A link is not followed onto a file server, which may not answer, wherever on the link's path it is mounted.
func TestFindOfLinksToServers(t *testing.T) {
	p := newPlace(t)
	base := t.TempDir()
	p.mount(filepath.Join(base, "far"), "/").FSType = "fuse.sshfs"
	require.NoError(t, os.Symlink(filepath.Join(base, "far"), filepath.Join(base, "way")))
	require.NoError(t, os.Symlink(base+"/way/../disk", filepath.Join(p.dir, "link")))
	require.Contains(t, p.find()["link"].Problem, "it is a link, and "+base+"/far is on a file system of kind fuse.sshfs")
	p.mounts[0].FSType = "nfs"
	require.NotContains(t, p.find()["link"].Problem, "kind nfs", "the host's own root")
}

func TestResolve(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	for link, target := range map[string]string{"up": "a/b/../../a/./b", "abs": dir + "/a", "more": "abs/b", "loop": "loop", "off": "a/none"} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	for _, name := range []string{"", "a", "up", "abs", "more", "loop", "off", "more/../b", "none"} {
		want, wantErr := filepath.EvalSymlinks(dir + "/" + name)
		got, err := resolve(nil, dir+"/"+name)
		require.Equal(t, want, got, name)
		require.Equal(t, wantErr == nil, err == nil, name)
		require.Equal(t, errors.Is(wantErr, os.ErrNotExist), errors.Is(err, os.ErrNotExist), name)
	}
}

// An entry whose name is not UTF-8, so that the API server cannot tell it from others, is refused and never opened.
func TestFindOfNamesThatAreNotUTF8(t *testing.T) {
	p := newPlace(t)
	p.mount(p.make("good"), "/")
	p.mount(p.make("disk-\xff"), "/")
	p.mount(p.make("disk-\xfe"), "/")
	p.make(`"disk-\xff"`)
	all := p.find()
	require.Len(t, all, 4)
	require.Empty(t, all["good"].Problem)
	require.Equal(t, 1, p.asked)
	for _, name := range []string{`disk-\xff"`, `disk-\xfe"`} {
		require.Equal(t, Found{Class: "fast", Path: `"` + p.dir + "/" + name, Problem: "its name is not UTF-8; rename it"}, all[name])
		require.False(t, filepath.IsAbs(all[name].Path), "no entry, and no PersistentVolume of one, has such a path")
	}
	require.Contains(t, all[`"disk-\xff"`].Problem, "it is a plain directory")
	require.Len(t, p.find(func(c *Class) { c.Pattern = "g*" }), 1)
}

func TestUnused(t *testing.T) {
	number := unix.Mkdev(8, 16)
	mount := func(at, root string) *mountinfo.Info {
		return &mountinfo.Info{Major: 8, Minor: 16, Mountpoint: at, Root: root}
	}
	other := &mountinfo.Info{Major: 0, Minor: 5, Mountpoint: "/mnt/fast/a/deep", Root: "/"}
	whole := Found{Path: "/mnt/fast/a", Kind: Filesystem, Number: number, Root: "/"}
	plain := Found{Path: "/mnt/fast/a", Kind: Directory, Number: number, Root: "/srv/a"}
	part := plain
	part.Mounted = true
	device := Found{Path: "/mnt/fast/a", Kind: Device, Number: number}
	for name, c := range map[string]struct {
		of     Found
		mounts []*mountinfo.Info
		says   string
	}{
		"nobody":                 {whole, []*mountinfo.Info{mount("/mnt/fast/a", "/")}, ""},
		"a pod":                  {whole, []*mountinfo.Info{mount("/mnt/fast/a", "/"), mount("/var/lib/kubelet/pods/x", "/")}, "mounted on /var/lib/kubelet/pods/x as well"},
		"a person, in part":      {whole, []*mountinfo.Info{mount("/mnt/fast/a", "/"), mount("/home/x", "/some/where")}, "mounted on /home/x as well"},
		"something in it":        {whole, []*mountinfo.Info{mount("/mnt/fast/a", "/"), other}, "something is mounted below it, at /mnt/fast/a/deep"},
		"unmounted":              {whole, nil, "mounted 0 times"},
		"mounted twice":          {whole, []*mountinfo.Info{mount("/mnt/fast/a", "/"), mount("/mnt/fast/a", "/")}, "mounted 2 times"},
		"what it is a part of":   {part, []*mountinfo.Info{mount("/data", "/"), mount("/mnt/fast/a", "/srv/a"), mount("/mnt/fast/b", "/srv/b")}, ""},
		"a part in use":          {part, []*mountinfo.Info{mount("/data", "/"), mount("/mnt/fast/a", "/srv/a"), mount("/pod", "/srv/a/sub")}, "mounted on /pod as well"},
		"a part, unmounted":      {part, []*mountinfo.Info{mount("/data", "/")}, "mounted 0 times"},
		"a plain directory":      {plain, []*mountinfo.Info{mount("/data", "/")}, ""},
		"mounted over":           {plain, []*mountinfo.Info{mount("/data", "/"), mount("/mnt/fast/a", "/srv/a")}, "mounted 1 times"},
		"a device":               {device, []*mountinfo.Info{other}, ""},
		"a device, by somebody":  {device, []*mountinfo.Info{mount("/home/x", "/")}, "it is mounted on /home/x"},
		"a name that only looks": {whole, []*mountinfo.Info{mount("/mnt/fast/a", "/"), {Mountpoint: "/mnt/fast/ab", Root: "/"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkUnmounted(c.of, c.mounts)
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestLedger(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state", "discovered.json")
	l, err := ReadLedger(file)
	require.NoError(t, err)
	require.Empty(t, l)
	l["naa.5000"] = Entry{Path: "/mnt/a", Volume: "pv-1", Offset: 7, Owner: &Owner{Mode: 0o755, Attributes: &quota.Attributes{Flags: 8, ExtentSize: 4096, Project: 7}}}
	require.NoError(t, l.Write(file))
	again, err := ReadLedger(file)
	require.NoError(t, err)
	require.Equal(t, l, again)
	require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("{", 9)), 0o600))
	_, err = ReadLedger(file)
	require.ErrorContains(t, err, "nothing is offered or cleaned until the file can be read")
	e := Entry{}
	for range 2 * maxCleaned {
		e.Volume += "x"
		e = e.Clean()
	}
	require.Len(t, e.Cleaned, maxCleaned)
	require.True(t, e.CleanedAfter(e.Volume))
}
