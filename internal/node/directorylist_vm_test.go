//go:build vm

package node

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// TestDirectoryPoolAddsUp: at any moment in the life of a volume, the pool's free space and the sizes of the
// listed volumes add up to the pool's size. What killed calls have left counts as free.
func TestDirectoryPoolAddsUp(t *testing.T) {
	m := newMachine(t)
	m.directories(64 * volume.MiB)
	steps := map[string]int{}
	// XFS frees deleted files a moment later, and counts them until then.
	await := func(done func() bool, step string) {
		t.Helper()
		require.Eventually(t, done, time.Minute, 50*time.Millisecond, "after %q", step)
	}
	addsUp := func(step string) (pool inventory.Pool, volumes map[volume.Name]inventory.Volume) {
		t.Helper()
		steps[step]++
		await(func() bool {
			pool, volumes = m.pool()
			taken := volume.Bytes(0)
			for _, v := range volumes {
				require.Empty(t, v.Problem, step)
				taken += v.Allocated
			}
			return pool.Size == pool.Free+taken
		}, step)
		require.Empty(t, pool.Directories.Unfit, step)
		return pool, volumes
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	watched, err := New(Config{StateDir: m.dir + "/state", LockDir: m.dir + "/lock", After: func(step string) { addsUp(step) }}, command.New(command.DefaultPath, log))
	require.NoError(t, err)
	s, dir := directorySpec("data", volume.MiB), m.target("pod")
	require.NoError(t, watched.Mount(m.ctx(), s, MountRequest{Target: dir}))
	require.NoError(t, watched.Expand(m.ctx(), s, 3*volume.MiB))
	m.shell("mkdir -p %[1]s/a/b/c && seq 100 | sed 's,^,%[1]s/a/,' | xargs touch", dir)
	fill(t, dir+"/file")
	m.unmount(dir)
	require.NoError(t, watched.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, watched.Remove(m.ctx(), refOf(s)))
	for _, step := range []string{"set project", "set quota", "write directory record", "name directory", "clear directory", "clear quota"} {
		require.Positive(t, steps[step], step)
	}
	pool, volumes := m.pool() // immediately: what is still counted would have another volume evicted
	require.Empty(t, volumes)
	require.Equal(t, pool.Size, pool.Free)

	kept := directorySpec("kept", volume.MiB)
	m.mount(kept, "kept")
	killed := func(die int) (named bool) {
		c := call{Dir: m.dir, Verb: "mount", Spec: directorySpec(fmt.Sprintf("killed-%d", die), 8*volume.MiB), Target: m.target("killed"), Die: die}
		require.True(t, c.run(t))
		_, volumes := addsUp(fmt.Sprintf("killed after step %d", die))
		_, named = volumes[c.Spec.Name]
		return named
	}
	die := 1
	for ; !killed(die); die++ {
		require.Less(t, die, 10)
	}
	require.Greater(t, die, 4)
	require.False(t, killed(die-1), "it is there already")
	m.opened(func(p *directoryPool) error {
		left, err := p.listDir(newDir)
		require.Len(t, left, 1)
		return err
	})
	pool, volumes = addsUp("killed")
	all := kept.HeldBy(volumes[kept.Name].Allocated + pool.Free)
	await(func() bool { return m.Expand(m.ctx(), kept, all) == nil }, "what was left is removed")
	pool, _ = addsUp("expand to all that is left")
	require.Less(t, pool.Free, volume.MiB)
}
