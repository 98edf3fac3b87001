package luks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const lv = "Zk2Q1s-8hVb-Pq1C-2dLc-9Xwq-TfKo-a1B2c3"

// sysfs is one with devices dm-0, dm-1 and so on.
type sysfs struct {
	t   *testing.T
	dir string
}

func (s sysfs) write(file, text string) {
	s.t.Helper()
	file = filepath.Join(s.dir, file)
	require.NoError(s.t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(s.t, os.WriteFile(file, []byte(text+"\n"), 0o600))
}

// device makes a device on others.
func (s sysfs) device(minor int, name, uuid string, on ...int) {
	s.t.Helper()
	dir := fmt.Sprintf("block/dm-%d", minor)
	s.write(dir+"/dev", fmt.Sprintf("254:%d", minor))
	s.write(dir+"/dm/name", name)
	s.write(dir+"/dm/uuid", uuid)
	for _, sub := range []string{"slaves", "holders"} {
		require.NoError(s.t, os.MkdirAll(filepath.Join(s.dir, dir, sub), 0o755))
	}
	for _, below := range on {
		link := func(from, to string) {
			require.NoError(s.t, os.Symlink(filepath.Join(s.dir, to), filepath.Join(s.dir, from)))
		}
		link(fmt.Sprintf("%s/slaves/dm-%d", dir, below), fmt.Sprintf("block/dm-%d", below))
		link(fmt.Sprintf("block/dm-%d/holders/dm-%d", below, minor), dir)
	}
	require.NoError(s.t, os.MkdirAll(filepath.Join(s.dir, "dev/block"), 0o755))
	require.NoError(s.t, os.Symlink(filepath.Join(s.dir, dir), fmt.Sprintf("%s/dev/block/254:%d", s.dir, minor)))
}

func dm(minor uint32) uint64 { return unix.Mkdev(254, minor) }

func TestMappings(t *testing.T) {
	name := MappingName(lv)
	require.Equal(t, "flexlvm-crypt-Zk2Q1s8hVbPq1C2dLc9XwqTfKoa1B2c3", name)
	uuid := uuidPrefix + strings.ReplaceAll(id, "-", "") + "-" + name
	s := sysfs{t, t.TempDir()}
	s.device(0, "flexlvm-a", "LVM-xyz")
	s.device(1, name, uuid, 0)
	s.device(2, "flexlvm-b", "LVM-abc")
	s.device(3, "luks-home", "CRYPT-LUKS2-"+strings.Repeat("0", 32)+"-luks-home", 2)
	s.device(4, "flexlvm-crypt-plain", "CRYPT-PLAIN-flexlvm-crypt-plain", 2)
	s.write("block/sda/dev", "8:0")
	s.write("block/dm-9/size", "0") // it is just going

	want := Mapping{Name: name, Path: "/dev/mapper/" + name, Number: dm(1), UUID: id, Device: dm(0)}
	m, err := On(s.dir, dm(0))
	require.NoError(t, err)
	require.Equal(t, want, m)
	m, err = ByNumber(s.dir, dm(1))
	require.NoError(t, err)
	require.Equal(t, want, m)
	all, err := Mappings(s.dir)
	require.NoError(t, err)
	require.Equal(t, []Mapping{want}, all, "those of others are not ours")

	for _, number := range []uint64{dm(0), dm(3), dm(4), dm(7), unix.Mkdev(8, 0)} {
		_, err := ByNumber(s.dir, number)
		require.ErrorIs(t, err, ErrNoMapping)
	}
	for _, number := range []uint64{dm(1), dm(2), dm(7)} {
		_, err := On(s.dir, number)
		require.ErrorIs(t, err, ErrNoMapping)
	}
}

// The kernel refuses to tell of a device that is just being removed (EINVAL),
// or has nothing to tell any more.
func TestMappingThatIsGoing(t *testing.T) {
	for _, err := range []error{unix.EINVAL, unix.ENODEV, unix.ENOENT} {
		require.True(t, gone(&os.PathError{Op: "read", Path: "dm/name", Err: err}), err)
	}
	require.False(t, gone(&os.PathError{Op: "read", Path: "dm/name", Err: unix.EIO}))
}

// A mapping that cryptsetup has left half-made is reported, and does not count as closed.
func TestMappingOnNothing(t *testing.T) {
	name := MappingName(lv)
	s := sysfs{t, t.TempDir()}
	s.device(1, name, uuidPrefix+strings.ReplaceAll(id, "-", "")+"-"+name)
	_, err := ByNumber(s.dir, dm(1))
	require.ErrorContains(t, err, "dmsetup remove "+name)
	require.NotErrorIs(t, err, ErrNoMapping)

	// Nor does it hide the others.
	whole := MappingName(strings.ToUpper(lv))
	s.device(2, "flexlvm-a", "LVM-xyz")
	s.device(3, whole, uuidPrefix+strings.ReplaceAll(id, "-", "")+"-"+whole, 2)
	all, err := Mappings(s.dir)
	require.ErrorContains(t, err, "dmsetup remove "+name)
	require.Len(t, all, 1)
	require.Equal(t, whole, all[0].Name)
}
