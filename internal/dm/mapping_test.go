package dm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	lv = "Zk2Q1s-8hVb-Pq1C-2dLc-9Xwq-TfKo-a1B2c3"
	id = "0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"
)

// sysfs is a fake sysfs with devices dm-0, dm-1 and so on.
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

// device creates a device on top of others.
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

func number(minor uint32) uint64 { return unix.Mkdev(254, minor) }

func TestMappings(t *testing.T) {
	name := CryptName(lv)
	require.Equal(t, "flexlvm-crypt-Zk2Q1s8hVbPq1C2dLc9XwqTfKoa1B2c3", name)
	uuid := cryptUUID + strings.ReplaceAll(id, "-", "") + "-" + name
	s := sysfs{t, t.TempDir()}
	s.device(0, "flexlvm-a", "LVM-xyz")
	s.device(1, name, uuid, 0)
	s.device(2, "flexlvm-b", "LVM-abc")
	s.device(6, "flexlvm-c", "LVM-def")
	s.device(8, "flexlvm-d", "LVM-ghi")
	s.device(3, "luks-home", "CRYPT-LUKS2-"+strings.Repeat("0", 32)+"-luks-home", 2)
	s.device(4, "flexlvm-crypt-plain", "CRYPT-PLAIN-flexlvm-crypt-plain", 2)
	block := BlockName(lv)
	s.device(5, block, "FLEXLVM-"+block, 6)
	s.device(7, "flexlvm-block-other", "OTHER-flexlvm-block-other", 8)
	s.device(10, "flexlvm-e", "LVM-jkl")
	container, onIt := BlockCryptName(strings.ToUpper(lv)), BlockName(strings.ToUpper(lv))
	s.device(11, container, cryptUUID+strings.ReplaceAll(id, "-", "")+"-"+container, 10)
	s.device(12, onIt, "FLEXLVM-"+onIt, 11)
	require.True(t, IsBlockName(container), "what LVM must not see")
	s.write("block/sda/dev", "8:0")
	s.write("block/dm-9/size", "0") // it is being removed

	want := Mapping{Name: name, Path: "/dev/mapper/" + name, Number: number(1), UUID: id, Device: number(0)}
	m, err := On(s.dir, number(0))
	require.NoError(t, err)
	require.Equal(t, want, m)
	m, err = ByNumber(s.dir, number(1))
	require.NoError(t, err)
	require.Equal(t, want, m)
	all, err := Mappings(s.dir)
	require.NoError(t, err)
	raw := Mapping{Name: block, Path: "/dev/mapper/" + block, Number: number(5), Device: number(6)}
	crypt := Mapping{Name: container, Path: "/dev/mapper/" + container, Number: number(11), UUID: id, Device: number(10)}
	onCrypt := Mapping{Name: onIt, Path: "/dev/mapper/" + onIt, Number: number(12), Device: number(11)}
	require.ElementsMatch(t, []Mapping{want, raw, crypt, onCrypt}, all, "mappings of others are left out")
	m, err = On(s.dir, number(10))
	require.NoError(t, err)
	require.Equal(t, crypt, m)
	m, err = On(s.dir, number(11))
	require.NoError(t, err)
	require.Equal(t, onCrypt, m)
	m, err = On(s.dir, number(6))
	require.NoError(t, err)
	require.Equal(t, raw, m)
	s.write("block/dm-5/size", "2056")
	size, err := Size(s.dir, number(5))
	require.NoError(t, err)
	require.Equal(t, volume.MiB+volume.Block, size)
	_, err = Size(s.dir, number(6))
	require.Error(t, err)

	for _, other := range []uint64{number(0), number(3), number(4), number(6), number(7), unix.Mkdev(8, 0)} {
		_, err := ByNumber(s.dir, other)
		require.ErrorIs(t, err, ErrNoMapping)
	}
	for _, other := range []uint64{number(1), number(2), number(7), number(8)} {
		_, err := On(s.dir, other)
		require.ErrorIs(t, err, ErrNoMapping)
	}
}

// The kernel returns EINVAL for a device that is being removed, and other errors for one that is gone.
func TestMappingThatIsGoing(t *testing.T) {
	for _, err := range []error{unix.EINVAL, unix.ENODEV, unix.ENOENT} {
		require.True(t, gone(&os.PathError{Op: "read", Path: "dm/name", Err: err}), err)
	}
	require.False(t, gone(&os.PathError{Op: "read", Path: "dm/name", Err: unix.EIO}))
}

// A mapping that cryptsetup has left half-created is an error, and does not count as closed.
func TestMappingOnNothing(t *testing.T) {
	name := CryptName(lv)
	s := sysfs{t, t.TempDir()}
	s.device(1, name, cryptUUID+strings.ReplaceAll(id, "-", "")+"-"+name)
	_, err := ByNumber(s.dir, number(1))
	require.ErrorIs(t, err, ErrOnNothing)
	require.ErrorContains(t, err, "dmsetup remove "+name)
	require.NotErrorIs(t, err, ErrNoMapping)

	// It is listed, and so are the others.
	whole := CryptName(strings.ToUpper(lv))
	s.device(2, "flexlvm-a", "LVM-xyz")
	s.device(3, whole, cryptUUID+strings.ReplaceAll(id, "-", "")+"-"+whole, 2)
	all, err := Mappings(s.dir)
	require.NoError(t, err)
	require.ElementsMatch(t, []Mapping{
		{Name: name, Path: "/dev/mapper/" + name, Number: number(1), UUID: id},
		{Name: whole, Path: "/dev/mapper/" + whole, Number: number(3), UUID: id, Device: number(2)},
	}, all)

	// One on two devices is not.
	s.device(4, "flexlvm-b", "LVM-abc")
	onTwo := BlockName(lv)
	s.device(5, onTwo, "FLEXLVM-"+onTwo, 2, 4)
	all, err = Mappings(s.dir)
	require.ErrorContains(t, err, "is on 2 devices")
	require.Len(t, all, 2)
}
