//go:build vm

package csidoor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/vm/csinode"
)

// A patient is a node whose health is queried.
type patient struct {
	bed
	*csinode.Node
}

func newPatient(t *testing.T) patient {
	t.Helper()
	b := newBed(t)
	log := logrus.New()
	log.SetOutput(t.Output())
	e, err := node.New(node.Config{StateDir: b.Dir + "/state", LockDir: b.Dir + "/lock", Log: log}, command.New("", log))
	require.NoError(t, err)
	n, err := csinode.Start(t.Context(), b.Dir+"/csi.sock", e)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return patient{b, n}
}

// volume mounts a new volume and removes it after the test.
func (p patient) volume(name volume.Name, group volume.Group, layout volume.Layout, pool volume.Name) volume.Spec {
	p.t.Helper()
	s := p.Spec
	s.Name, s.Group, s.Layout, s.ThinPool = name, group, layout, pool
	target := filepath.Join(p.Dir, "pods", string(name))
	require.NoError(p.t, p.Mount(p.t.Context(), s, target))
	p.t.Cleanup(func() {
		require.NoError(p.t, unix.Unmount(target, 0))
		p.sh(fmt.Sprintf("lvremove --yes %s/%s", group, name))
	})
	return s
}

// reasons returns the entries of a volume's health as status/reason.
func (p patient) reasons(s volume.Spec) (all []string) {
	p.t.Helper()
	entries, err := p.Health(p.t.Context(), s)
	require.NoError(p.t, err)
	for _, e := range entries {
		require.NotEmpty(p.t, e.GetMessage())
		all = append(all, e.GetStatus().String()+"/"+e.GetReason())
	}
	return all
}

// poolReasons returns the reasons and messages of the node's health.
func (p patient) poolReasons() (all []string) {
	p.t.Helper()
	entries, err := p.StorageHealth(p.t.Context())
	require.NoError(p.t, err)
	for _, e := range entries {
		all = append(all, e.GetReason()+": "+e.GetMessage())
	}
	return all
}

// One of two disks fails and comes back. Meanwhile a volume with two copies is degraded, and one with
// its only copy on that disk is inaccessible.
func TestHealthOfAFailedDisk(t *testing.T) {
	p := newPatient(t)
	const sectors = 700 << 11
	t.Setenv("DM_DISABLE_UDEV", "1") // dmsetup creates the nodes itself
	table := func(i int) string { return fmt.Sprintf("0 %d linear /dev/vdc %d", sectors, 2048+i*sectors) }
	for i := range 2 {
		p.sh(fmt.Sprintf("dmsetup create frail%[1]d --table '%[2]s' && dmsetup mknodes frail%[1]d && pvcreate --yes /dev/mapper/frail%[1]d", i, table(i)))
		t.Cleanup(func() { p.sh(fmt.Sprintf("dmsetup remove frail%d", i)) })
	}
	p.sh("vgcreate frail /dev/mapper/frail0 /dev/mapper/frail1")
	t.Cleanup(func() { p.sh("vgremove --yes frail") })
	set := func(table string) {
		p.sh("dmsetup suspend --noflush frail0 && dmsetup reload frail0 --table '" + table + "' && dmsetup resume frail0")
	}
	single, copies := p.volume("single", "frail", volume.Linear, ""), p.volume("copies", "frail", volume.Raid1, "")
	require.Contains(t, p.sh("lvs --noheadings -o devices frail/single"), "/dev/mapper/frail0")
	require.Eventually(t, func() bool { return p.sh("lvs --noheadings -o sync_percent frail/copies") == "100.00" }, 5*time.Minute, 100*time.Millisecond)
	require.Empty(t, p.reasons(single))
	require.Empty(t, p.reasons(copies))
	require.Empty(t, p.poolReasons())

	set(fmt.Sprintf("0 %d error", sectors))
	p.sh("dd if=/dev/zero of=" + p.Dir + "/pods/copies/f bs=64k count=16 conv=fsync status=none")
	require.Equal(t, []string{csi.VolumeHealthErrorType_DEGRADED.String() + "/CopiesMissing"}, p.reasons(copies))
	require.Equal(t, []string{csi.VolumeHealthErrorType_INACCESSIBLE.String() + "/NeedsAttention"}, p.reasons(single))
	pools := p.poolReasons()
	require.Len(t, pools, 1)
	require.True(t, strings.HasPrefix(pools[0], "DeviceMissing: pool frail lacks 1 device "), pools[0])

	set(table(0))
	p.sh("lvchange --refresh frail/copies")
	require.Eventually(t, func() bool { return len(p.reasons(copies)) == 0 }, 5*time.Minute, 100*time.Millisecond)
	require.Empty(t, p.reasons(single))
	require.Empty(t, p.poolReasons())
}

// When a thin pool is nearly full, its volumes are reported as degraded before the pool is exhausted.
func TestHealthOfAFullPool(t *testing.T) {
	p := newPatient(t)
	const size = 384 // MiB
	p.sh(fmt.Sprintf("lvcreate --yes --thin --size %dM --poolmetadatasize 16M --chunksize 64K --zero y --errorwhenfull y --addtag flexlvm --addtag flexlvm.kind=pool --thinpool pool flexlvm-test", size))
	t.Cleanup(func() { p.sh("lvremove --yes flexlvm-test/pool") })
	s := p.volume("thin", "flexlvm-test", volume.Thin, "pool")
	require.Empty(t, p.reasons(s))
	require.Empty(t, p.poolReasons())

	// A volume that is not flexlvm's fills the pool up to 97 %.
	p.sh("lvcreate --yes --virtualsize 1G --thinpool flexlvm-test/pool --name filler")
	used, err := strconv.ParseFloat(p.sh("lvs --noheadings -o data_percent flexlvm-test/pool"), 64)
	require.NoError(t, err)
	p.sh(fmt.Sprintf("dd if=/dev/zero of=/dev/flexlvm-test/filler bs=1M count=%d oflag=direct status=none", int((97-used)/100*size)))
	require.Equal(t, []string{csi.VolumeHealthErrorType_DEGRADED.String() + "/PoolFull"}, p.reasons(s))
	pools := p.poolReasons()
	require.Len(t, pools, 1)
	require.True(t, strings.HasPrefix(pools[0], "PoolFull: thin pool flexlvm-test/pool has "), pools[0])

	p.sh("lvremove --yes flexlvm-test/filler")
	require.Empty(t, p.reasons(s))
	require.Empty(t, p.poolReasons())
	require.NoError(t, os.WriteFile(filepath.Join(p.Dir, "pods/thin/f"), []byte("x"), 0o600))
}
