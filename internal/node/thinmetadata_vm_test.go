//go:build vm

package node

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A pool has room for data and none for its metadata: no volume can be created in it, writers get an error
// immediately, synced data can be read, and everything works again when the metadata has grown.
func TestThinPoolOutOfMetadata(t *testing.T) {
	m := newMachine(t)
	m.shape = volume.Shape{Layout: volume.Thin, ThinPool: testPool}
	m.shell("lvcreate -qq --yes --thin --size 2G --poolmetadatasize 2M --zero y --errorwhenfull y --addtag flexlvm --addtag flexlvm.kind=pool --thinpool %s %s", testPool, group)
	t.Cleanup(func() { m.shell("lvremove --yes %s/%s", group, testPool) })
	a := m.volume("a", 256*volume.MiB)
	target := m.mount(a, "a")
	require.NoError(t, os.WriteFile(target+"/kept", []byte("flexlvm"), 0o600))
	m.shell("sync -f %s", target)

	// Each volume needs a block of the metadata, although LVM does not know of these volumes.
	made, pool := 0, volume.DeviceName(group, testPool)+"-tpool"
	for ; made < 5000; made++ {
		if out, err := exec.Command("dmsetup", "message", pool, "0", fmt.Sprintf("create_thin %d", 10_000+made)).CombinedOutput(); err != nil {
			t.Logf("%d volumes filled the metadata: %s", made, out)
			break
		}
	}
	full, err := m.lvm.ThinPool(m.ctx(), group, testPool)
	require.NoError(t, err)
	t.Logf("the pool: %+v", full)
	require.Greater(t, full.MetadataUsed, full.Metadata*9/10)
	require.Less(t, full.Used, full.Size/2)

	err = m.tryMount(m.volume("c", 64*volume.MiB), m.target("c"))
	t.Logf("a new volume: %v", err)
	require.ErrorIs(t, err, lvm.ErrNoSpace)
	require.ErrorContains(t, err, "its metadata is 100% full")
	began := time.Now()
	in, err := writeUntilError(t, target+"/more")
	t.Logf("%s were written, then %v", in, err)
	require.True(t, isNoSpace(err), "%v", err)
	require.Less(t, time.Since(began), 5*time.Minute)
	m.shell("echo 3 >/proc/sys/vm/drop_caches")
	kept, err := os.ReadFile(target + "/kept")
	require.NoError(t, err)
	require.Equal(t, "flexlvm", string(kept))

	m.shell("lvextend -qq --poolmetadatasize +62M %s/%s", group, testPool)
	m.unmount(target)
	target = m.mount(a, "a")
	kept, err = os.ReadFile(target + "/kept")
	require.NoError(t, err)
	require.Equal(t, "flexlvm", string(kept))
	require.NoError(t, os.WriteFile(target+"/again", make([]byte, 8*volume.MiB), 0o600))
	m.shell("sync -f %s", target)
	m.mount(m.volume("c", 64*volume.MiB), "c")
}
