package nodeagent_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
)

// The two forms in which one disk may be found.
var (
	asDevice     = discovery.Found{Class: "fast", Path: "/mnt/fast/a", Kind: discovery.Device, Disk: "naa.5000", Size: 1 << 30}
	asFilesystem = discovery.Found{Class: "fast", Path: "/mnt/fast/a", Kind: discovery.Filesystem, Disk: "fs-u", Aliases: []string{"naa.5000"}, Size: 1 << 30}
)

// aliased adds aliases to a PersistentVolume.
func aliased(v *corev1.PersistentVolume, aliases string) *corev1.PersistentVolume {
	v.Annotations[flexlvmv1.AnnotationDiskAliases] = aliases
	return v
}

// A disk that was moved here with the data of a claim is not offered, whether it was a disk there and its file system
// is mounted here, or the reverse.
func TestDiscoveredDiskOfAnotherNodeUnderAnotherName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		of    *corev1.PersistentVolume
		found discovery.Found
		named string // the file system that is on the disk
	}{
		"a disk is mounted":              {ofNode2("naa.5000"), asFilesystem, ""},
		"a file system is linked":        {aliased(ofNode2("fs-u"), "naa.5000"), asDevice, ""},
		"an earlier version's is linked": {ofNode2("fs-u"), asDevice, "fs-u"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			disks.found, disks.named, disks.full = []discovery.Found{c.found}, c.named, errors.New("it holds a database")
			r.api.put(c.of)
			r.start()
			r.heldByNode2()
			r.noted(func(l discovery.Ledger) bool { return l[c.found.Disk].Volume == "pv-2" }, "it is not noted who has it")
		})
	}
}

// A mapping that has lost a disk, and works without it, keeps its PersistentVolume and its recorded names, but is neither
// offered nor cleaned.
func TestDiscoveredWithoutOneOfItsDisks(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	require.NoError(t, discovery.Ledger{"naa.5000": {Path: "/mnt/fast/a", Offer: 1, Aliases: []string{"naa.1", "naa.2"}}}.Write(r.config.DiscoveredFile))
	disks.found[0].Aliases, disks.found[0].AliasesUnknown = []string{"naa.1"}, errors.New("naa.2 is gone")
	r.start()
	require.Contains(t, r.discoveredIs(flexlvmv1.DiscoveredRefused).Message, "cannot determine all disks that it is on")
	r.api.put(static("pv-1"))
	r.discoveredIs(flexlvmv1.DiscoveredProvided)
	r.api.put(static("pv-1", pvReleased))
	r.eventually(func() bool {
		return strings.Contains(r.discoveredIs(flexlvmv1.DiscoveredCleaning).Message, "naa.2 is gone")
	}, "it does not say why it is not cleaned")
	require.Zero(t, disks.cleanings())
	r.noted(func(l discovery.Ledger) bool { return strings.Join(l["naa.5000"].Aliases, " ") == "naa.1 naa.2" }, "a name is lost")
}

// Another node's loop device of a file with the same path is another disk: it hinders neither the offer nor the cleaning
// of a file system.
func TestDiscoveredOnALoopDeviceAsOnAnotherNode(t *testing.T) {
	t.Parallel()
	const loop = "loop-/srv/disk.img"
	r, disks := newDiscoveryRig(t)
	disks.found = []discovery.Found{asFilesystem}
	disks.found[0].Aliases = []string{loop}
	theirs := ofNode2(loop)
	theirs.Spec.Local.Path = "/mnt/fast/b"
	r.api.put(theirs)
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredReady)
	r.api.put(static("pv-1", pvReleased, func(v *corev1.PersistentVolume) { v.Annotations[flexlvmv1.AnnotationDisk] = "fs-u" }))
	r.discoveredIs(flexlvmv1.DiscoveredCleaned)
}

// Another node's loop device of a file with the same path is another disk, also if it is a volume itself.
func TestDiscoveredLoopDeviceAsOnAnotherNode(t *testing.T) {
	t.Parallel()
	const loop = "loop-/srv/disk.img"
	r, disks := newDiscoveryRig(t)
	disks.found[0].Disk = loop
	theirs := ofNode2(loop)
	theirs.Spec.Local.Path = "/mnt/fast/b"
	r.api.put(theirs)
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredReady)
}

// If plain dm-crypt mappings are on each other's disks after a boot, none is cleaned, and where each was stays recorded. A
// disk whose claim is not gone is not offered under another name.
func TestDiscoveredPlainMappingsThatAreExchanged(t *testing.T) {
	t.Parallel()
	const data1, data2 = "dm-CRYPT-PLAIN-data1", "dm-CRYPT-PLAIN-data2"
	r, disks := newDiscoveryRig(t)
	was := discovery.Ledger{data1: {Path: "/mnt/fast/a", Offer: 1, Volume: "pv-1", Claim: "uid-of-claim", Aliases: []string{"naa.1"}}}
	require.NoError(t, was.Write(r.config.DiscoveredFile))
	named := func(v *corev1.PersistentVolume) { v.Annotations[flexlvmv1.AnnotationDisk] = data1 }
	disks.found[0].Disk, disks.found[0].Aliases = data1, []string{"naa.2"}
	r.api.put(aliased(static("pv-1", named, pvReleased), "naa.1"))
	r.start()
	require.Contains(t, r.discoveredIs(flexlvmv1.DiscoveredRefused).Message, "another disk is at /mnt/fast/a")
	r.scans(disks, 1)
	r.noted(func(l discovery.Ledger) bool { return strings.Join(l[data1].Aliases, " ") == "naa.1" }, "it is not known where it was")
	require.Zero(t, disks.cleanings())

	disks.with(func() {
		second := disks.found[0]
		second.Path, second.Disk, second.Aliases = "/mnt/fast/b", data2, []string{"naa.1"}
		disks.found = append(disks.found, second)
	})
	r.api.putDiscovery()
	r.eventually(func() bool {
		states, messages := r.statesAt()
		return states["/mnt/fast/b"] == flexlvmv1.DiscoveredRefused && strings.Contains(messages, "PersistentVolume static-a has this disk at /mnt/fast/a")
	}, "the disk of the claim is offered")
}

// A disk whose ID is the same on every machine is not offered, so no other node's disk is taken for it. One that has a
// PersistentVolume keeps that.
func TestDiscoveredWithACommonID(t *testing.T) {
	t.Parallel()
	const common = "nvme.1ae0-6e766d655f6361726430-6e766d655f6361726430-00000001"
	r, disks := newDiscoveryRig(t)
	disks.found[0].Disk = common
	r.api.put(ofNode2(common))
	r.start()
	require.Equal(t, "disks of other machines have the same ID, "+common+"; make a file system on it and mount that here, or give the disk a serial number of its own",
		r.discoveredIs(flexlvmv1.DiscoveredRefused).Message)
	r.api.remove("static-b")
	r.api.put(static("pv-1", func(v *corev1.PersistentVolume) { v.Annotations[flexlvmv1.AnnotationDisk] = common }))
	r.discoveredIs(flexlvmv1.DiscoveredProvided)
}

// If the file system of a PersistentVolume is not mounted, a link to its disk does not lead to another disk; nor does
// the file system on the disk of a PersistentVolume.
func TestDiscoveredDiskOfAnUnmountedFilesystem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		id, aliases string
		found       discovery.Found
		named       string
	}{
		"its disk is known":       {"fs-u", "naa.5000", asDevice, ""},
		"of an earlier version":   {"fs-u", "", asDevice, "fs-u"},
		"a directory of it":       {"fs-u:/a", "", asDevice, "fs-u"},
		"the disk was its volume": {"naa.5000", "", asFilesystem, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			disks.found, disks.named = []discovery.Found{c.found}, c.named
			v := aliased(static("pv-1"), c.aliases)
			v.Annotations[flexlvmv1.AnnotationDisk], v.Spec.Local.Path = c.id, "/mnt/fast/b"
			r.api.put(v)
			r.start()
			r.eventually(func() bool {
				states, messages := r.statesAt()
				return states["/mnt/fast/a"] == flexlvmv1.DiscoveredRefused && strings.Contains(messages, "PersistentVolume static-a has this disk at /mnt/fast/b")
			}, "it is not refused for the PersistentVolume")
		})
	}
}

// A disk whose PersistentVolume was deleted by hand must be empty before its file system is offered, and the reverse.
func TestDiscoveredUnderAnotherNameIsNotEmpty(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		was   discovery.Ledger
		found discovery.Found
		named string
	}{
		"it was a disk":            {discovery.Ledger{"naa.5000": {Path: "/mnt/fast/b", Offer: 1, Volume: "pv-0"}}, asFilesystem, ""},
		"it was a file system":     {discovery.Ledger{"fs-u": {Path: "/mnt/fast/b", Aliases: []string{"naa.5000"}, Offer: 1, Volume: "pv-0"}}, asDevice, ""},
		"which only its UUID says": {discovery.Ledger{"fs-u": {Path: "/mnt/fast/b", Offer: 1, Volume: "pv-0"}}, asDevice, "fs-u"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			require.NoError(t, c.was.Write(r.config.DiscoveredFile))
			disks.found, disks.named, disks.full = []discovery.Found{c.found}, c.named, errors.New("it holds a database")
			r.start()
			require.Contains(t, r.discoveredIs(flexlvmv1.DiscoveredRefused).Message, "it had another PersistentVolume under another name, or a part of it had one, or the disk that it is on, and it was not cleaned since, and it holds a database")
			disks.with(func() { disks.full = nil })
			r.api.putDiscovery()
			r.discoveredIs(flexlvmv1.DiscoveredReady)
			r.noted(func(l discovery.Ledger) bool {
				e := l[c.found.Disk]
				return e.CleanedAfter("pv-0") && strings.Join(e.Aliases, " ") == strings.Join(c.found.Aliases, " ")
			}, "its names, or that it is empty, are not noted")
		})
	}
}

// A partition that is extended while a claim has it is cleaned once it is released, unless it has reached into the data of
// another PersistentVolume.
func TestDiscoveredPartitionThatGrows(t *testing.T) {
	t.Parallel()
	const part = "naa.5000-part1"
	for name, c := range map[string]struct {
		neighbour discovery.Entry
		want      flexlvmv1.DiscoveredState
	}{
		"into free space":     {discovery.Entry{Path: "/mnt/fast/b", Start: 4 << 30, Size: 1 << 30, Volume: "pv-0"}, flexlvmv1.DiscoveredCleaned},
		"over a clean one":    {discovery.Entry{Path: "/mnt/fast/b", Start: 2 << 30, Size: 1 << 30, Volume: "pv-0", Cleaned: []string{"pv-0"}}, flexlvmv1.DiscoveredCleaned},
		"over another's data": {discovery.Entry{Path: "/mnt/fast/b", Start: 2 << 30, Size: 1 << 30, Volume: "pv-0"}, flexlvmv1.DiscoveredRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			require.NoError(t, discovery.Ledger{
				part: {Path: "/mnt/fast/a", Offer: 1, Start: 1 << 30, Size: 1 << 30}, "naa.5000-part2": c.neighbour,
			}.Write(r.config.DiscoveredFile))
			disks.found[0].Disk, disks.found[0].Start, disks.found[0].PartitionSize = part, 1<<30, 2<<30
			named := func(v *corev1.PersistentVolume) { v.Annotations[flexlvmv1.AnnotationDisk] = part }
			r.api.put(static("pv-1", named))
			r.start()
			if c.want == flexlvmv1.DiscoveredRefused {
				require.Contains(t, r.discoveredIs(c.want).Message, "the partition was extended over naa.5000-part2")
			} else {
				r.discoveredIs(flexlvmv1.DiscoveredProvided)
			}
			r.api.put(static("pv-1", named, pvReleased))
			require.Equal(t, c.want, r.discoveredIs(c.want).State)
			if c.want == flexlvmv1.DiscoveredRefused {
				r.eventually(func() bool {
					return strings.Contains(r.discoveredIs(c.want).Message, "the partition table has changed")
				}, "its release is not examined")
				require.Zero(t, disks.cleanings())
			}
		})
	}
}

// A file system is not cleaned while another PersistentVolume has its disk.
func TestDiscoveredIsNotCleanedUnderAnotherName(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	require.NoError(t, discovery.Ledger{"fs-u": {Path: "/mnt/fast/a", Offer: 1}}.Write(r.config.DiscoveredFile))
	disks.found = []discovery.Found{asFilesystem}
	r.api.put(ofNode2("naa.5000"))
	r.api.put(static("pv-1", pvReleased, func(v *corev1.PersistentVolume) { v.Annotations[flexlvmv1.AnnotationDisk] = "fs-u" }))
	r.start()
	r.eventually(func() bool {
		_, messages := r.statesAt()
		return strings.Contains(messages, "PersistentVolume static-b also names this disk")
	}, "it does not say why")
	require.Zero(t, disks.cleanings())
}

// The report has all names of a disk that is offered, from which its PersistentVolume gets them.
func TestDiscoveredNamesAreReported(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	disks.named = "fs-u"
	r.start()
	require.Equal(t, "fs-u", r.discoveredIs(flexlvmv1.DiscoveredReady).Aliases)
	disks.with(func() { disks.found[0].Aliases = []string{strings.Repeat("x", 1020), "naa.1"} })
	r.api.putDiscovery()
	r.eventually(func() bool {
		all := r.status().Discovered
		return len(all) == 1 && all[0].Aliases == "fs-u,naa.1"
	}, "the name of its file system is not the first")
	disks.with(func() { disks.found, disks.named = []discovery.Found{asFilesystem}, "" })
	r.api.putDiscovery()
	r.eventually(func() bool {
		all := r.status().Discovered
		return len(all) == 1 && all[0].Disk == "fs-u" && all[0].Aliases == "naa.5000"
	}, "its disk is not reported")
}
