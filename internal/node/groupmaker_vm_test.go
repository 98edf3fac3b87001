//go:build vm

package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

const declaredGroup = volume.Group("declared-test")

// serialDisks returns the paths of the disks with the serial numbers declared-1 and following, which are
// blank, and clears them when the test ends.
func serialDisks(t *testing.T, m *machine) []string {
	t.Helper()
	var paths []string
	for n := 1; n <= 3; n++ {
		files, err := filepath.Glob("/sys/block/*/serial")
		require.NoError(t, err)
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == fmt.Sprintf("declared-%d", n) {
				paths = append(paths, "/dev/"+filepath.Base(filepath.Dir(file)))
			}
		}
	}
	require.Len(t, paths, 3, "test/vm/suite gives three disks with serial numbers")
	m.clearDisks(paths)
	t.Cleanup(func() { m.clearDisks(paths) })
	return paths
}

// clearDisks removes the groups on disks and makes the disks blank.
func (m *machine) clearDisks(paths []string) {
	m.t.Helper()
	for _, group := range []string{string(declaredGroup), "by-hand"} {
		if shellOut("vgs --noheadings -o vg_name -S vg_name="+group) != "" {
			m.shell("vgremove --yes --force %s", group)
		}
	}
	m.blank(paths...)
}

// blank makes disks blank that are in no group. The kernel lets a disk zero ranges by itself, and writes
// zeros if the disk cannot. It needs --force, because udev may have a disk open whose signatures were just
// erased.
func (m *machine) blank(paths ...string) {
	m.t.Helper()
	m.shell(`for disk in %s; do
		wipefs --quiet --all $disk
		blkdiscard --force --zeroout --length 24MiB $disk
		blkdiscard --force --zeroout --offset 1000MiB --length 24MiB $disk
		blockdev --rereadpt $disk 2>/dev/null || :
	done`, strings.Join(paths, " "))
}

// declare creates what is declared for the disks with serial numbers.
func (m *machine) declare(change ...func(*volumegroup.Declaration)) volumegroup.Outcome {
	m.t.Helper()
	d := declaredDisks(change...)
	out, err := m.MakeDeclared(m.ctx(), []volumegroup.Declaration{d}, func(context.Context, volumegroup.Declaration) error { return nil })
	require.NoError(m.t, err)
	return out[0]
}

func declaredDisks(change ...func(*volumegroup.Declaration)) volumegroup.Declaration {
	d := volumegroup.Declaration{Name: "declared", Group: declaredGroup, Selectors: []volumegroup.Selector{{ByID: "serial-declared-*"}}}
	for _, c := range change {
		c(&d)
	}
	return d
}

func extended(d *volumegroup.Declaration) { d.Extend = true }

func groupDevices() []string {
	return strings.Fields(shellOut("pvs --noheadings -o pv_name -S vg_name=" + string(declaredGroup)))
}

// Of three disks, one has a file system and one a partition table: the group is created on the third, and
// extended to the others once they are blank.
func TestDeclaredGroup(t *testing.T) {
	m := newMachine(t)
	disks := serialDisks(t, m)
	m.shell("mkfs.ext4 -q %s", disks[0])
	m.shell("echo label: gpt | sfdisk -q %s", disks[1])
	out := m.declare(func(d *volumegroup.Declaration) { d.ThinPool = "thinpool"; d.ThinSize = 600 * volume.MiB })
	require.Equal(t, volumegroup.Made, out.State, out.Message)
	require.Equal(t, disks[2:], groupDevices())
	require.Len(t, out.Refused, 2)
	require.Contains(t, out.Refused[0].Reason, "ext4")
	require.Contains(t, out.Refused[1].Reason, "gpt")
	require.Equal(t, "flexlvm.declared=declared", shellOut("vgs --noheadings -o vg_tags "+string(declaredGroup)))
	pool, err := m.lvm.ThinPool(m.ctx(), declaredGroup, "thinpool")
	require.NoError(t, err)
	require.Empty(t, pool.Unfit())
	group, err := m.lvm.Group(m.ctx(), declaredGroup)
	require.NoError(t, err)
	require.GreaterOrEqual(t, group.MetadataSize, 16*volume.MiB)

	m.clearDisks(nil) // removes the group, and leaves the disks alone
	out = m.declare()
	require.Equal(t, volumegroup.Refused, out.State)
	require.Contains(t, out.Message, "was created here and is gone")

	m.clearDisks(disks)
	out = m.declare(func(d *volumegroup.Declaration) { d.ReuseDisks = []string{"serial-declared-3@1"} })
	require.Equal(t, volumegroup.Made, out.State, out.Message)
	require.Equal(t, disks, groupDevices(), "those that were refused were never taken")
}

// Disks that appear later are added if that is requested.
func TestDeclaredGroupIsExtended(t *testing.T) {
	m := newMachine(t)
	disks := serialDisks(t, m)
	m.shell("mkfs.ext4 -q %s", disks[2])
	require.Equal(t, volumegroup.Made, m.declare().State)
	require.Equal(t, disks[:2], groupDevices())
	m.blank(disks[2])
	out := m.declare()
	require.Contains(t, out.Refused[0].Reason, "set spec.extend")
	out = m.declare(extended)
	require.Equal(t, volumegroup.Made, out.State, out.Message)
	require.True(t, out.Changed)
	require.Equal(t, disks, groupDevices())
	require.False(t, m.declare(extended).Changed)
}

// A disk that is not blank is refused, whatever is on it and whoever uses it.
func TestDeclaredGroupOfDisksThatAreNotBlank(t *testing.T) {
	m := newMachine(t)
	disks := serialDisks(t, m)
	only := func(d *volumegroup.Declaration) { d.Selectors = []volumegroup.Selector{{Path: disks[0]}} }
	held := func(flags int) func() func() {
		return func() func() {
			f, err := os.OpenFile(disks[0], os.O_RDONLY|flags, 0)
			require.NoError(t, err)
			return func() { require.NoError(t, f.Close()) }
		}
	}
	for name, c := range map[string]struct {
		spoil func() (mend func())
		line  string
		says  string
	}{
		"of another group":       {line: "vgcreate -qq by-hand %s", says: "belongs to volume group by-hand"},
		"a physical volume":      {line: "pvcreate -qq %s", says: "LVM physical volume"},
		"a file system":          {line: "mkfs.xfs -q %s", says: "xfs"},
		"swap":                   {line: "mkswap %s", says: "swap"},
		"a partition":            {line: "echo , | sfdisk -q %s", says: "partition"},
		"a RAID member":          {line: `printf '\374N+\251\001' | dd of=%s bs=1 seek=4096 conv=fsync status=none`, says: "does not read as zeros"},
		"data at its beginning":  {line: "echo data | dd of=%s conv=fsync status=none", says: "not zero in the MiB at 0"},
		"data at its end":        {line: "echo data | dd of=%s bs=1M seek=1023 conv=fsync status=none", says: "not zero in the MiB at 1072693248"},
		"claimed by somebody":    {spoil: held(unix.O_EXCL), says: "in use"},
		"opened by somebody":     {spoil: held(0), says: fmt.Sprintf("process %d", os.Getpid())},
		"a file system, mounted": {line: "mkfs.xfs -q %[1]s && mkdir -p /tmp/m && mount %[1]s /tmp/m", says: "mounted", spoil: func() func() { return func() { m.shell("umount /tmp/m") } }},
	} {
		t.Run(name, func(t *testing.T) {
			m := m.in(t)
			if c.line != "" {
				m.shell(c.line, disks[0])
			}
			defer m.clearDisks(disks[:1])
			if c.spoil != nil {
				defer c.spoil()()
			}
			ends := fmt.Sprintf("{ head -c 32M %[1]s; tail -c 32M %[1]s; } | md5sum", disks[0])
			before := shellOut(ends)
			require.NotEmpty(t, before)
			out := m.declare(only)
			require.Equal(t, volumegroup.Refused, out.State)
			require.Len(t, out.Refused, 1, out.Message)
			require.Contains(t, out.Refused[0].Reason, c.says)
			require.Equal(t, before, shellOut(ends), "it is as it was")
			require.Empty(t, groupDevices())
		})
	}
}

// Disks without serial numbers cannot be distinguished, whatever the kernel reports instead of a serial
// number.
func TestDeclaredGroupOfDisksWithoutSerialNumbers(t *testing.T) {
	m := newMachine(t)
	nameless := testDisks()[3:]
	out := m.declare(func(d *volumegroup.Declaration) {
		d.Selectors = nil
		for _, path := range nameless {
			d.Selectors = append(d.Selectors, volumegroup.Selector{Path: path})
		}
	})
	require.Equal(t, volumegroup.Refused, out.State, out.Message)
	require.Len(t, out.Refused, len(nameless))
	for _, r := range out.Refused {
		require.Contains(t, r.Reason, "neither a WWN nor a serial number")
	}
}

// A group of that name which a person has created is left alone.
func TestDeclaredGroupThatExists(t *testing.T) {
	m := newMachine(t)
	disks := serialDisks(t, m)
	m.shell("vgcreate -qq %s %s", declaredGroup, disks[0])
	out := m.declare(extended)
	require.Equal(t, volumegroup.Refused, out.State)
	require.Contains(t, out.Message, "was not created by a VolumeGroup")
	require.Equal(t, disks[:1], groupDevices())
}

// A node that has lost its state recognises its group by the tag.
func TestDeclaredGroupOfAForgetfulNode(t *testing.T) {
	m := newMachine(t)
	disks := serialDisks(t, m)
	require.Equal(t, volumegroup.Made, m.declare().State)
	forgetful := m.in(t)
	out := forgetful.declare(extended)
	require.Equal(t, volumegroup.Made, out.State, out.Message)
	require.False(t, out.Changed)
	m.clearDisks(disks)
	require.Contains(t, forgetful.declare(extended).Message, "was created here and is gone")
}

func TestDeclaredGroupKilledAfterEveryStep(t *testing.T) {
	m := newMachine(t)
	disks := serialDisks(t, m)
	d := declaredDisks(func(d *volumegroup.Declaration) { d.ThinPool = "thinpool" })
	deaths := 0
	untilAlive(t, call{Dir: m.dir, Verb: "declare", Declared: []volumegroup.Declaration{d}}, func() {
		m.clearDisks(disks)
		require.NoError(t, os.RemoveAll(filepath.Join(m.dir, "state")))
	}, func(step int) {
		deaths++
		require.Equal(t, disks, groupDevices(), "death %d", step)
		_, err := m.lvm.ThinPool(m.ctx(), declaredGroup, "thinpool")
		require.NoError(t, err, "death %d", step)
	})
	require.Equal(t, 9, deaths, "record; pvcreate, three times; record; vgcreate, record; lvcreate, record")
}

func TestDeclaredGroupKilledWhileItIsExtended(t *testing.T) {
	m := newMachine(t)
	disks := serialDisks(t, m)
	one := declaredDisks(func(d *volumegroup.Declaration) { d.Selectors = []volumegroup.Selector{{Path: disks[0]}} })
	deaths := 0
	untilAlive(t, call{Dir: m.dir, Verb: "declare", Declared: []volumegroup.Declaration{declaredDisks(extended)}}, func() {
		m.clearDisks(disks)
		require.NoError(t, os.RemoveAll(filepath.Join(m.dir, "state")))
		require.False(t, call{Dir: m.dir, Verb: "declare", Declared: []volumegroup.Declaration{one}}.run(t))
	}, func(step int) {
		deaths++
		require.Equal(t, disks, groupDevices(), "death %d", step)
	})
	require.Equal(t, 6, deaths, "record; pvcreate, twice; record; vgextend, record")
}
