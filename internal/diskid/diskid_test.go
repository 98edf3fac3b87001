package diskid

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Data is found under another name if one side knows both names. File systems of one disk are not confused.
func TestNamesOverlap(t *testing.T) {
	disk := Names{ID: "naa.1"}
	formatted := Names{ID: "naa.1", Aliases: []string{"fs-u"}}
	mounted := Names{ID: "fs-u", Aliases: []string{"naa.1"}}
	for name, c := range map[string]struct {
		a, b Names
		want bool
	}{
		"a disk and its file system":           {disk, mounted, true},
		"which only the disk knows":            {formatted, Names{ID: "fs-u"}, true},
		"a disk and a directory on it":         {formatted, Names{ID: "fs-u:/a"}, true},
		"a disk and a partition's file system": {disk, Names{ID: "fs-u", Aliases: []string{"naa.1-part1"}}, true},
		"a partition and another's":            {Names{ID: "naa.1-part2"}, Names{ID: "fs-u", Aliases: []string{"naa.1-part1"}}, false},
		"two directories":                      {Names{ID: "fs-u:/a", Aliases: []string{"naa.1"}}, Names{ID: "fs-u:/b", Aliases: []string{"naa.1"}}, false},
		"two file systems of one disk":         {mounted, Names{ID: "fs-v", Aliases: []string{"naa.1"}}, false},
		"another disk":                         {Names{ID: "naa.2"}, mounted, false},
		"no disk":                              {Names{}, Names{Aliases: []string{""}}, false},
	} {
		require.Equal(t, c.want, c.a.Overlap(c.b), name)
		require.Equal(t, c.want, c.b.Overlap(c.a), name)
	}
}

// Two machines may each have a loop device of a file with the same path, or a mapping with the same name.
func TestNamesOverlapOfTwoMachines(t *testing.T) {
	for _, id := range []string{"loop-/srv/disk.img", "loop-/srv/disk.img-part1", "dm-CRYPT-PLAIN-secret"} {
		mounted, device := Names{ID: "fs-u", Aliases: []string{id}}, Names{ID: id}
		require.True(t, mounted.Overlap(device), id)
		require.False(t, mounted.OverlapElsewhere(device), id)
		require.False(t, device.OverlapElsewhere(mounted), id)
		require.Equal(t, []string{id}, mounted.Aliases)
	}
	for _, id := range []string{"naa.1", "dm-CRYPT-LUKS2-1", "dm-LVM-1"} {
		require.True(t, Names{ID: "fs-u", Aliases: []string{"loop-/srv/disk.img", id}}.OverlapElsewhere(Names{ID: id}), id)
	}
	for _, id := range []string{"loop-/srv/disk.img", "dm-CRYPT-PLAIN-secret", "dm-CRYPT-INTEGRITY-secret"} {
		require.True(t, Names{ID: id}.Overlap(Names{ID: id}))
		require.False(t, Names{ID: id}.OverlapElsewhere(Names{ID: id}), id)
		require.False(t, Names{ID: id, Aliases: []string{"naa.1"}}.OverlapElsewhere(Names{ID: id, Aliases: []string{"naa.2"}}), id)
		require.True(t, Names{ID: id, Aliases: []string{"naa.1"}}.OverlapElsewhere(Names{ID: id, Aliases: []string{"fs-u", "naa.1"}}), "the disk was moved")
	}
}

// A mapping that has only a name is known by the devices that it is on.
func TestNamesOverlapOfPlainMappings(t *testing.T) {
	const lv, other, pool = "dm-LVM-a", "dm-LVM-b", "dm-LVM-p-tpool"
	for name, c := range map[string]struct {
		was, now []string
		same     bool // the devices, under the same local ID
		overlap  bool // under another ID
	}{
		"one disk":                           {[]string{"naa.1"}, []string{"naa.1"}, true, true},
		"two disks":                          {[]string{"naa.1"}, []string{"naa.2"}, false, false},
		"two partitions":                     {[]string{"naa.1-part1"}, []string{"naa.1-part2"}, false, false},
		"a RAID with a new disk":             {[]string{"naa.1", "naa.2"}, []string{"naa.2", "naa.3"}, true, false},
		"two partitions of a RAID":           {[]string{"naa.1", "naa.2"}, []string{"naa.1", "naa.2"}, true, false},
		"a disk that multipathd has now":     {[]string{"naa.1"}, []string{"dm-mpath-1", "naa.1"}, true, true},
		"a volume that was moved":            {[]string{lv, "naa.1"}, []string{lv, "naa.2"}, true, true},
		"two volumes of one disk":            {[]string{lv, "naa.1"}, []string{other, "naa.1"}, false, false},
		"two volumes of one pool":            {[]string{lv, pool, "naa.1"}, []string{other, pool, "naa.1"}, false, false},
		"a volume with a snapshot":           {[]string{lv, "naa.1"}, []string{lv, lv + "-real", "naa.1"}, true, true},
		"a volume, and the disk that it has": {[]string{lv, "naa.1"}, []string{"naa.1"}, false, false},
		"a disk that has no ID":              {[]string{"naa.1"}, nil, false, false},
		"a loop device":                      {[]string{"naa.1"}, []string{"loop-/a"}, false, false},
	} {
		const id = "dm-CRYPT-PLAIN-data1"
		was, now := Names{ID: id, Aliases: append([]string{"fs-u"}, c.was...)}, Names{ID: id, Aliases: c.now}
		require.Equal(t, !c.same, was.Exchanged(now), name)
		for _, renamed := range []string{"dm-CRYPT-PLAIN-data2", "fs-v"} {
			now.ID = renamed
			require.Equal(t, c.overlap, was.Overlap(now), name)
			require.Equal(t, c.overlap, now.Overlap(was), name)
			require.False(t, was.Exchanged(now), "it has another name")
		}
	}
	for _, id := range []string{"naa.5", "dm-LVM-a"} {
		require.False(t, Names{ID: id, Aliases: []string{"naa.1"}}.Exchanged(Names{ID: id, Aliases: []string{"naa.2"}}), "its ID says which one it is")
	}
	for _, loop := range [][]string{nil, {"loop-/b"}, {"fs-u"}} {
		one := Names{ID: "loop-/a", Aliases: loop}
		require.False(t, one.Exchanged(one))
		require.False(t, one.Overlap(Names{ID: "loop-/c", Aliases: loop}), "nobody knows")
	}
}

func TestSamePartitioned(t *testing.T) {
	for ids, want := range map[[2]string]bool{
		{"naa.1-part1", "naa.1-part12"}: true,
		{"naa.1-part1", "naa.2-part1"}:  false,
		{"naa.1-part1", "naa.1"}:        false,
		{"naa.1-parts", "naa.1-part2"}:  false,
		{"fs-u", "fs-v"}:                false,
	} {
		require.Equal(t, want, SamePartitioned(ids[0], ids[1]), ids)
		require.Equal(t, want, SamePartitioned(ids[1], ids[0]), ids)
	}
}

func TestIsMappedPartition(t *testing.T) {
	for id, want := range map[string]bool{
		"dm-part1-mpath-3600": true, "dm-part12-devnode_8:0_": true, "dm-mpath-3600": false, "dm-partition": false, "naa.1-part1": false, "fs-dm-part1-x": false,
	} {
		require.Equal(t, want, IsMappedPartition(id), id)
	}
}

func TestCommon(t *testing.T) {
	for id, want := range map[string]bool{
		"nvme.1ae0-6e766d655f6361726430-6e766d655f6361726430-00000001":       true,
		"nvme.1ae0-6e766d655f6361726430-6e766d655f6361726430-00000001-part1": true,
		"nvme.1ae0-53303031-6e766d655f6361726430-00000001":                   false,
		"nvme.1d0f-6e766d655f6361726430-6e766d655f6361726430-00000001":       false,
		"t10.ATA_QEMU_HARDDISK_QM00001":                                      true,
		"t10.ATA_QEMU_HARDDISK_QM00001-part2":                                true,
		"t10.ATA_QEMU_HARDDISK_disk-1":                                       false,
		"serial-QM00001":                                                     false,
		"fs-QM00001":                                                         false,
	} {
		require.Equal(t, want, Common(id), id)
	}
}

func TestAliases(t *testing.T) {
	two := Names{ID: "fs-u", Aliases: []string{"dm-1", "naa.1"}}
	require.Equal(t, "dm-1,naa.1", two.JoinAliases())
	require.Equal(t, two, ParseNames("fs-u", "dm-1,naa.1"))
	require.Equal(t, Names{ID: "fs-u"}, ParseNames("fs-u", Names{}.JoinAliases()))
	require.Equal(t, "naa.1", Names{Aliases: []string{"loop-/a,b", strings.Repeat("x", maxAliases), "naa.1"}}.JoinAliases())
}

func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"naa.1", "naa.1", true},
		{"naa.1", "naa.1-part2", true},
		{"naa.1-part1", "naa.1-part2", false},
		{"naa.1-part1", "naa.1-part11", false},
		{"naa.1", "naa.12", false},
		{"naa.1", "naa.1-parts", false},
		{"fs-u", "fs-u:/a", true},
		{"fs-u:/a", "fs-u:/a/b", true},
		{"fs-u:/a", "fs-u:/ab", false},
		{"fs-u", "fs-v", false},
		{"", "", false},
		{"", "-part1", false},
	} {
		require.Equal(t, c.want, Overlap(c.a, c.b), "%s %s", c.a, c.b)
		require.Equal(t, c.want, Overlap(c.b, c.a), "%s %s", c.b, c.a)
	}
}
