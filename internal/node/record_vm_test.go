//go:build vm

package node

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// An unreadable record is written again if the device holds the file system of the tags; otherwise it keeps
// the volume from being formatted.
func TestTornRecord(t *testing.T) {
	for name, torn := range map[string]string{"empty": "", "torn": `{"volumeUUID":"X`} {
		for _, state := range []volume.State{volume.Ready, volume.Creating} {
			t.Run(name+" "+string(state), func(t *testing.T) {
				m := newMachine(t)
				if state == volume.Creating {
					behind(m)
				}
				s := m.volume("data", 64*volume.MiB)
				target := m.mount(s, "a")
				require.NoError(t, os.WriteFile(target+"/f", []byte("x"), 0o600))
				m.unmount(target)
				require.Equal(t, state, tagsOf(t, s.Name).State)
				tear := func() { require.NoError(t, os.WriteFile(m.records.file(s.Group, s.Name), []byte(torn), 0o600)) }

				tear()
				require.FileExists(t, m.mount(s, "a")+"/f")
				m.unmount(target)
				rec, err := m.records.read(s.Group, s.Name)
				require.NoError(t, err)
				require.Equal(t, state, rec.State)

				tear()
				m.shell("dd if=/dev/zero of=%s bs=4k count=1 conv=fsync status=none", devicePath(s))
				before := m.written(devicePath(s))
				require.ErrorIs(t, m.tryMount(s, target), ErrDamaged)
				require.Equal(t, before, m.written(devicePath(s)))
			})
		}
	}
}

// Existing volumes keep working while nothing can be written to the state directory. New volumes wait, and so
// do growths: their next mount uses the record, and a power cut may undo the quota.
func TestStateDirectoryIsOfNoUse(t *testing.T) {
	for name, spoil := range map[string]string{
		"read-only": "mount -o remount,ro %s",
		"full":      "head -c 64k /dev/zero > %[1]s/rest || true; i=0; while mkdir %[1]s/$i 2>/dev/null; do i=$((i+1)); done",
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			dir := m.dir + "/state"
			require.NoError(t, os.Mkdir(dir, 0o700))
			m.shell("mount -t tmpfs -o size=64k,nr_inodes=64 tmpfs %s", dir)
			t.Cleanup(func() { m.shell("umount %s", dir) })
			known, unknown := m.volume("known", 64*volume.MiB), m.volume("unknown", 64*volume.MiB)
			for _, s := range []volume.Spec{known, unknown} {
				target := m.mount(s, "a")
				require.NoError(t, os.WriteFile(target+"/f", []byte("x"), 0o600))
				m.unmount(target)
			}
			require.NoError(t, m.records.remove(unknown.Group, unknown.Name))
			m.shell(spoil, dir)

			for _, s := range []volume.Spec{known, unknown} {
				target := m.mount(s, "a")
				require.FileExists(t, target+"/f", s.Name)
				m.unmount(target)
			}
			err := m.tryMount(m.volume("new", 64*volume.MiB), m.target("new"))
			require.ErrorContains(t, err, "is not handed out before it is on record")
			require.False(t, isMounted(m.target("new")))

			target := m.mount(known, "a")
			const larger = 128 * volume.MiB
			require.ErrorContains(t, m.Expand(m.ctx(), known, larger), "does not grow before its new size is on record")
			size, _, _ := df(t, target)
			require.Equal(t, known.Size, size)
			require.Equal(t, known.Size, tagsOf(t, known.Name).Size)
			m.shell("mount -o remount,rw %[1]s; rm -rf %[1]s/rest %[1]s/[0-9]*", dir)
			require.NoError(t, m.Expand(m.ctx(), known, larger))
			size, _, _ = df(t, target)
			require.Equal(t, larger, size)
			m.unmount(target)
		})
	}
}
