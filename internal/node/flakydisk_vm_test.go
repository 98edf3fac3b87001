//go:build vm

package node

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// flaky is frail.table with writes that alternate between working and failing, for that many seconds each.
func (f frail) flaky(i, seconds int) string {
	return fmt.Sprintf("0 %d flakey %s %d %d %[4]d 1 error_writes", frailSize<<11, f.disk, (1+i*frailSize)<<11, seconds)
}

// Writes to both disks of a group, including LVM's metadata, fail every other second, or for longer if a
// mount takes longer. A call may fail. What was durable stays durable, and once the disks work again, the
// next call of each volume repairs what was left behind.
func TestFlakyDisk(t *testing.T) {
	m := newMachine(t)
	f := newFrail(m)
	spec := func(name string) volume.Spec {
		s := specOf(name, 64*volume.MiB)
		s.Group = f.group
		return s
	}
	// save writes a file and reports whether it is durable.
	save := func(target string) bool {
		return shellOut("echo kept >"+target+"/f && sync "+target+"/f && echo durable") == "durable"
	}
	kept := spec("kept")
	began := time.Now()
	target := m.mount(kept, "kept")
	window := int(2*time.Since(began)/time.Second) + 1
	t.Cleanup(func() { _ = m.Unmount(m.ctx(), target) })
	require.True(t, save(target))

	for i := range 2 {
		f.set(i, f.flaky(i, window))
	}
	const enough, most = 2, 12 // as many as there is room for
	durable, failed := map[volume.Name]bool{}, 0
	var volumes []volume.Spec
	for len(durable) < enough || failed < enough {
		time.Sleep(time.Duration(window) * time.Second / 4) // so that the tries see several outages
		require.Less(t, len(volumes), most, "%d mounts failed, %d files were durable", failed, len(durable))
		s := spec(fmt.Sprintf("data-%d", len(volumes)))
		volumes = append(volumes, s)
		at := m.target(string(s.Name))
		if err := m.tryMount(s, at); err != nil {
			failed++
			continue
		}
		if save(at) {
			durable[s.Name] = true
		}
		_ = m.Expand(m.ctx(), s, 80*volume.MiB)
		m.unmount(at)
	}
	t.Logf("of %d mounts %d failed; %d files were durable", len(volumes), failed, len(durable))

	for i := range 2 {
		f.set(i, f.table(i))
	}
	m.unmount(target)
	m.mount(kept, "kept")
	require.FileExists(t, filepath.Join(target, "f"))
	m.unmount(target)
	for _, s := range volumes {
		at := m.mount(s, string(s.Name))
		if durable[s.Name] {
			require.FileExists(t, filepath.Join(at, "f"), s.Name)
		}
		require.NoError(t, m.Expand(m.ctx(), s, 80*volume.MiB))
		m.unmount(at)
	}
}
