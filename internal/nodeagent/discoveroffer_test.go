package nodeagent_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
	"github.com/flexlvm/flexlvm/internal/quota"
)

// listed returns how often all PersistentVolumes were listed.
func (r *rig) listed() int { return r.api.requests("list unlabelled persistentvolumes") }

// noted waits until the ledger satisfies fits.
func (r *rig) noted(fits func(discovery.Ledger) bool, why string) {
	r.t.Helper()
	r.eventually(func() bool {
		l, err := discovery.ReadLedger(r.config.DiscoveredFile)
		return err == nil && fits(l)
	}, "%s", why)
}

// scans waits for n more complete scans.
func (r *rig) scans(disks *fakeDisks, n int) {
	r.t.Helper()
	for range n + 1 {
		scanned := make(chan struct{}, 100)
		disks.with(func() { disks.finding = func() { scanned <- struct{}{} } })
		r.api.putDiscovery()
		waitFor(r.t, scanned, "it does not scan")
	}
	disks.with(func() { disks.finding = nil })
}

// ofNode2 is a PersistentVolume of the disk, or of a part of it, on another node.
func ofNode2(disk string) *corev1.PersistentVolume {
	return static("pv-2", pvReleased, func(v *corev1.PersistentVolume) {
		v.Name, v.Labels[flexlvmv1.LabelDiscoveredOn], v.Annotations[flexlvmv1.AnnotationDisk] = "static-b", "node-2", disk
	})
}

// heldByNode2 waits until the node refuses the disk because of ofNode2.
func (r *rig) heldByNode2() {
	r.t.Helper()
	r.eventually(func() bool {
		all := r.status().Discovered
		return len(all) == 1 && all[0].State == flexlvmv1.DiscoveredRefused && strings.Contains(all[0].Message, "PersistentVolume static-b of node node-2")
	}, "it is not refused for the PersistentVolume of node-2")
}

// A disk that was moved here with the data of another node's PersistentVolume is not offered. After that
// PersistentVolume is deleted, the disk is not offered before it is empty.
func TestDiscoveredDiskOfAnotherNode(t *testing.T) {
	t.Parallel()
	for _, disk := range []string{"naa.5000", "naa.5000-part1"} {
		t.Run(disk, func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			disks.full = errors.New("it holds a database")
			r.api.put(ofNode2(disk))
			r.start()
			said := r.discoveredIs(flexlvmv1.DiscoveredRefused).Message
			require.Contains(t, said, "PersistentVolume static-b of node node-2 was created for "+disk+":")
			require.Contains(t, said, "delete the claim and that PersistentVolume, and empty the disk")
			r.noted(func(l discovery.Ledger) bool {
				e := l["naa.5000"]
				return e.Volume == "pv-2" && !e.Offered && e.Offer == 0
			}, "it is not noted who has it")
			r.scans(disks, 1)
			require.Equal(t, said, r.discoveredIs(flexlvmv1.DiscoveredRefused).Message, "as long as that is there")
			r.clock.pass(59 * time.Minute)
			r.scans(disks, 1)
			require.Equal(t, 1, r.listed(), "an old list will do to explain why it is refused")

			r.api.remove("static-b")
			r.clock.pass(time.Minute)
			r.eventually(func() bool {
				r.api.putDiscovery()
				all := r.status().Discovered
				return len(all) == 1 && all[0].Message == "its PersistentVolume was deleted before the disk was cleaned, and it holds a database"
			}, "it is not known to hold another's data")
			disks.with(func() { disks.full = nil })
			r.api.putDiscovery()
			r.discoveredIs(flexlvmv1.DiscoveredReady)
			r.noted(func(l discovery.Ledger) bool { return l["naa.5000"].CleanedAfter("pv-2") && l["naa.5000"].Offered }, "it is offered, and not noted")
		})
	}
}

// All PersistentVolumes are listed once in a scan that makes an offer, and in no other scan.
func TestHoldersAreListedOnce(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	disks.found = append(disks.found, discovery.Found{Class: "fast", Path: "/mnt/fast/b", Kind: discovery.Device, Disk: "naa.6000", Size: 1 << 30})
	disks.owned = errors.New("it is part of dm-3")
	r.start()
	r.scans(disks, 2)
	require.Zero(t, r.listed(), "nothing is offered")
	scans, goOn := r.blockScans(disks)
	r.api.putDiscovery()
	waitFor(t, scans, "it does not scan")
	disks.with(func() { disks.owned = nil }) // before the next scan, so that one scan offers both
	goOn()
	r.scans(disks, 3)
	states, _ := r.statesAt()
	require.Equal(t, map[string]flexlvmv1.DiscoveredState{"/mnt/fast/a": flexlvmv1.DiscoveredReady, "/mnt/fast/b": flexlvmv1.DiscoveredReady}, states)
	require.Equal(t, 1, r.listed())
}

// While the API server does not answer who uses a disk, the disk is not offered, and the ledger stays unchanged.
func TestDiscoveredWhoseHolderIsNotKnown(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	was := discovery.Ledger{"naa.5000": {Path: "/mnt/fast/a", Offer: 7, Volume: "pv-0", Claim: "claim-0", Cleaned: []string{"pv-0"}, Erasure: discovery.Zero}}
	require.NoError(t, was.Write(r.config.DiscoveredFile))
	r.api.fail(500, "list unlabelled persistentvolumes")
	r.start()
	require.Contains(t, r.discoveredIs(flexlvmv1.DiscoveredRefused).Message, "cannot check whether another PersistentVolume has it")
	now, err := discovery.ReadLedger(r.config.DiscoveredFile)
	require.NoError(t, err)
	require.Equal(t, was, now)
	disks.with(func() { disks.full = errors.New("nobody asks, as it is clean") })
	r.api.mend()
	r.api.putDiscovery()
	r.discoveredIs(flexlvmv1.DiscoveredReady)
}

// A disk that was away may have been used elsewhere meanwhile. It is offered again, with a new number, once no other
// node uses it.
func TestDiscoveredThatWasAway(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		away, back func(r *rig, disks *fakeDisks)
	}{
		"another has come": {
			func(_ *rig, disks *fakeDisks) { disks.with(func() { disks.found[0].Disk = "naa.other" }) },
			func(_ *rig, disks *fakeDisks) { disks.with(func() { disks.found[0].Disk = "naa.5000" }) },
		},
		"a class is not looked at": {
			func(_ *rig, disks *fakeDisks) {
				disks.with(func() { disks.unseen = map[string]error{"fast": errors.New("the directory cannot be read")} })
			},
			func(_ *rig, disks *fakeDisks) { disks.with(func() { disks.unseen = nil }) },
		},
		"no VolumeDiscovery": {
			func(r *rig, _ *fakeDisks) { r.api.with(func() { r.api.changed("DELETED", r.api.discovery) }) },
			func(r *rig, _ *fakeDisks) { r.api.with(func() { r.api.changed("ADDED", r.api.discovery) }) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			r.start()
			first := r.discoveredIs(flexlvmv1.DiscoveredReady).Offer
			c.away(r, disks)
			if name != "no VolumeDiscovery" {
				r.api.putDiscovery()
			}
			r.noted(func(l discovery.Ledger) bool { return !l["naa.5000"].Offered }, "it is offered though nobody sees it")
			r.api.put(ofNode2("naa.5000")) // just after the check that no other node has the disk
			c.back(r, disks)
			r.api.putDiscovery()
			r.heldByNode2()
			lists := r.listed()
			r.clock.pass(9 * time.Minute)
			r.scans(disks, 1)
			require.Equal(t, lists, r.listed(), "what was seen lately will do")
			r.api.remove("static-b")
			r.clock.pass(time.Minute)
			r.api.putDiscovery()
			require.Greater(t, r.discoveredIs(flexlvmv1.DiscoveredReady).Offer, first)
		})
	}
}

// A disk that an earlier process has offered may belong to another node now. If it does not, its offer keeps its
// number: with a new one, a second PersistentVolume would be created if the first was created and deleted meanwhile.
func TestDiscoveredOfferOfAnEarlierProcess(t *testing.T) {
	t.Parallel()
	r, _ := newDiscoveryRig(t)
	stop := r.start()
	first := r.discoveredIs(flexlvmv1.DiscoveredReady).Offer
	stop()
	r.api.put(ofNode2("naa.5000"))
	stop = r.start()
	r.heldByNode2()
	stop()
	r.api.remove("static-b")
	require.NoError(t, os.Remove(r.config.DiscoveredFile))
	require.NoError(t, discovery.Ledger{"naa.5000": {Path: "/mnt/fast/a", Offer: first, Offered: true}}.Write(r.config.DiscoveredFile))
	r.clock.pass(time.Minute)
	r.api.fail(500, "list unlabelled persistentvolumes")
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredRefused)
	r.api.mend()
	r.api.putDiscovery()
	require.Equal(t, first, r.discoveredIs(flexlvmv1.DiscoveredReady).Offer)
}

// Two nodes that see the same disk may offer it at the same time. One offer gets the PersistentVolume. The other node
// notices, although it still sees the disk.
func TestDiscoveredOfferThatNobodyTakes(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredReady)
	r.api.put(ofNode2("naa.5000"))
	r.scans(disks, 1)
	require.Equal(t, 1, r.listed())
	r.clock.pass(10 * time.Minute)
	r.api.putDiscovery()
	r.heldByNode2()
	r.noted(func(l discovery.Ledger) bool { return l["naa.5000"].Volume == "pv-2" }, "it is not noted who has it")
}

// A partition of a disk that was handed out and not cleaned is not offered before it is empty. That is checked once
// and recorded.
func TestDiscoveredPartOfWhatWasNotCleaned(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	disks.found[0].Disk = "naa.5000-part1"
	disks.full = errors.New("it holds a database")
	require.NoError(t, discovery.Ledger{"naa.5000": {Path: "/mnt/fast/old", Offer: 1, Volume: "pv-0"}}.Write(r.config.DiscoveredFile))
	r.start()
	require.Equal(t, "it had another PersistentVolume under another name, or a part of it had one, or the disk that it is on, and it was not cleaned since, and it holds a database",
		r.discoveredIs(flexlvmv1.DiscoveredRefused).Message)
	disks.with(func() { disks.full = nil })
	r.api.putDiscovery()
	r.discoveredIs(flexlvmv1.DiscoveredReady)
	disks.with(func() { disks.full = errors.New("nobody asks twice") })
	r.scans(disks, 1)
	r.discoveredIs(flexlvmv1.DiscoveredReady)
	r.noted(func(l discovery.Ledger) bool {
		return strings.Join(l["naa.5000-part1"].Cleaned, " ") == "pv-0" && l["naa.5000"].Volume == "pv-0" && len(l["naa.5000"].Cleaned) == 0
	}, "it is asked twice, or the whole disk counts as clean")
}

// A PersistentVolume that was created and deleted between two scans has used the disk as well.
func TestDiscoveredBetweenTwoScans(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	r.start()
	first := r.discoveredIs(flexlvmv1.DiscoveredReady).Offer
	scans, goOn := r.blockScans(disks)
	disks.with(func() { disks.full = errors.New("it holds a database") })
	r.api.putDiscovery()
	waitFor(t, scans, "it does not scan")
	r.api.put(static("pv-1"))
	r.api.remove("static-a")
	goOn()
	require.Equal(t, "its PersistentVolume was deleted before the disk was cleaned, and it holds a database", r.discoveredIs(flexlvmv1.DiscoveredRefused).Message)
	r.noted(func(l discovery.Ledger) bool { return l["naa.5000"].Volume == "pv-1" }, "it is not noted")
	disks.with(func() { disks.full = nil })
	r.api.putDiscovery()
	require.Greater(t, r.discoveredIs(flexlvmv1.DiscoveredReady).Offer, first)
}

// The recent list that served the offer of another disk does not prove anything about this node's own
// PersistentVolumes. One that was deleted since leaves a clean disk, which is offered immediately.
func TestDiscoveredCleanWhileAnotherIsOffered(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	r.api.discovery.Spec.Classes[0].CleanDevice = flexlvmv1.CleanDiscard
	r.offered()
	r.api.put(static("pv-1"))
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredProvided)
	disks.with(func() {
		disks.found = append(disks.found, discovery.Found{Class: "fast", Path: "/mnt/fast/b", Kind: discovery.Device, Disk: "naa.6000", Size: 1 << 30})
		disks.full = errors.New("nobody asks, as it is clean")
	})
	state := func(path string, want flexlvmv1.DiscoveredState) {
		t.Helper()
		r.eventually(func() bool { states, _ := r.statesAt(); return states[path] == want }, "%s is not %s", path, want)
	}
	r.api.putDiscovery()
	state("/mnt/fast/b", flexlvmv1.DiscoveredReady)
	require.Equal(t, 1, r.listed())
	r.api.put(static("pv-1", pvReleased))
	state("/mnt/fast/a", flexlvmv1.DiscoveredCleaned)
	r.api.remove("static-a")
	state("/mnt/fast/a", flexlvmv1.DiscoveredReady)
	r.noted(func(l discovery.Ledger) bool { return l["naa.5000"].CleanedAfter("pv-1") && l["naa.5000"].Offered }, "it is not known to be clean")
}

// For a directory that an earlier release has offered and that no volume has used, the administrator's project is
// recorded. A directory that a volume has used may have the tenant's project.
func TestDiscoveredAttributesOfAnEarlierRelease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		was   discovery.Entry
		noted bool
	}{
		"nobody has had it":   {discovery.Entry{Offer: 1, Offered: true}, true},
		"emptied by a person": {discovery.Entry{Offer: 1, Volume: "pv-0"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			old := &discovery.Owner{Mode: 0o755}
			now := &discovery.Owner{Mode: 0o755, Attributes: &quota.Attributes{Project: 7}}
			disks.topmost, c.was.Path, c.was.Owner = now, "/mnt/fast/a", old
			require.NoError(t, discovery.Ledger{"naa.5000": c.was}.Write(r.config.DiscoveredFile))
			r.start()
			r.discoveredIs(flexlvmv1.DiscoveredReady)
			want := old
			if c.noted {
				want = now
			}
			l, err := discovery.ReadLedger(r.config.DiscoveredFile)
			require.NoError(t, err)
			require.Equal(t, want, l["naa.5000"].Owner)
		})
	}
}
