//go:build vm

package node

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// refOfThis returns a ref with the UUID of the existing volume.
func (m *machine) refOfThis(s volume.Spec) Ref {
	m.t.Helper()
	lv, err := m.lvm.Volume(m.ctx(), s.Group, s.Name)
	require.NoError(m.t, err)
	ref := refOf(s)
	ref.UUID = lv.UUID
	return ref
}

// givenUp returns unreferenced volumes with some data.
func (m *machine) givenUp(n int, d volume.Disposal) (specs []volume.Spec, refs []Ref) {
	m.t.Helper()
	for i := range n {
		s := m.volume(fmt.Sprintf("data-%d", i), 16*volume.MiB)
		target := m.mount(s, "a")
		require.NoError(m.t, os.WriteFile(target+"/old", nil, 0o600))
		m.unmount(target)
		require.NoError(m.t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, d))
		specs, refs = append(specs, s), append(refs, m.refOfThis(s))
	}
	return specs, refs
}

// commands counts the LVM commands that the engine has run so far.
func (m *machine) commands() int {
	m.t.Helper()
	log, err := os.ReadFile(m.dir + "/log")
	require.NoError(m.t, err)
	return strings.Count(string(log), "took=")
}

func TestRemoveAll(t *testing.T) { eachThickLayout(t, testRemoveAll) }

func testRemoveAll(t *testing.T, m *machine) {
	n := 6
	if m.shape.Layout != volume.Linear { // they take long to create, and three are a batch
		n = 3
	}
	specs, refs := m.givenUp(n, volume.Disposal{})
	before, written := m.commands(), m.shell("vgs --noheadings -o vg_seqno %s", group)
	for i, err := range m.RemoveAll(m.ctx(), refs) {
		require.NoError(t, err, specs[i].Name)
	}
	t.Logf("%d volumes: %d commands, the group's metadata went from version %s to %s",
		n, m.commands()-before, written, m.shell("vgs --noheadings -o vg_seqno %s", group))
	require.LessOrEqual(t, m.commands()-before, 4, "look, doom, remove, look")
	require.Empty(t, lvs())
	for _, s := range specs {
		require.ErrorIs(t, m.tryMount(s, m.target("b")), ErrRefused, "its tombstone stands")
	}
	for _, err := range m.RemoveAll(m.ctx(), refs) {
		require.NoError(t, err, "gone is success")
	}
}

// A volume that may not be removed, or not now, does not affect the others, and stays as it is.
func TestRemoveAllButWhatMayNotGo(t *testing.T) {
	m := newMachine(t)
	specs, refs := m.givenUp(3, volume.Disposal{})
	wiped := m.volume("wiped", 16*volume.MiB)
	m.unmount(m.mount(wiped, "a"))
	require.NoError(t, m.Release(m.ctx(), refOf(wiped), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeZero}))
	ready := m.volume("ready", 16*volume.MiB)
	target := m.mount(ready, "ready")
	require.NoError(t, os.WriteFile(target+"/kept", nil, 0o600))
	open := m.volume("open", 16*volume.MiB)
	m.unmount(m.mount(open, "a"))
	require.NoError(t, m.Release(m.ctx(), refOf(open), volume.Unreferenced, volume.Disposal{}))
	holder, err := os.Open("/dev/mapper/" + volume.DeviceName(open.Group, open.Name))
	require.NoError(t, err)
	defer func() { _ = holder.Close() }()
	snapped := m.volume("snapped", 16*volume.MiB)
	m.unmount(m.mount(snapped, "a"))
	require.NoError(t, m.Release(m.ctx(), refOf(snapped), volume.Unreferenced, volume.Disposal{}))
	m.shell("lvcreate --yes -s -L 16m -n backup %s/snapped", group)
	m.t.Cleanup(func() { m.clear("backup") })
	stranger, another := m.refOfThis(specs[0]), m.refOfThis(specs[1])
	stranger.Cluster, another.UUID = "another", "Fd4uCt-7lvd-Lkxg-5VKu-rGYm-Zhkc-0NpEMk"

	for _, err := range m.RemoveAll(m.ctx(), []Ref{stranger, another}) {
		require.ErrorIs(t, err, ErrRefused)
	}
	errs := m.RemoveAll(m.ctx(), append(refs, m.refOfThis(wiped), m.refOfThis(ready), m.refOfThis(open), m.refOfThis(snapped)))
	for i := range 4 {
		require.NoError(t, errs[i])
	}
	require.ErrorIs(t, errs[4], ErrRefused)
	require.ErrorIs(t, errs[5], ErrInUse)
	require.ErrorIs(t, errs[6], ErrRefused)
	require.ElementsMatch(t, []string{"ready", "open", "snapped", "backup"}, lvs())
	require.Equal(t, volume.Unreferenced, tagsOf(t, "open").State, "untouched")
	require.Equal(t, volume.Unreferenced, tagsOf(t, "snapped").State, "untouched")
	require.FileExists(t, target+"/kept")

	require.NoError(t, holder.Close())
	m.shell("lvremove --yes %s/backup", group)
	for _, err := range m.RemoveAll(m.ctx(), []Ref{m.refOfThis(open), m.refOfThis(snapped)}) {
		require.NoError(t, err)
	}
	require.Equal(t, []string{"ready"}, lvs())
}

// A device is opened after its volume was doomed: LVM 2.03 then removes none of the batch, and the other
// volumes are removed alone. None of them can be mounted any more, and the one in use is removed once it is
// closed.
func TestRemoveAllWhileOneIsOpened(t *testing.T) {
	m := newMachine(t)
	specs, refs := m.givenUp(4, volume.Disposal{})
	late := specs[1]
	var holder *os.File
	m.after = func(step string) {
		if step == "tag doomed" && holder == nil {
			var err error
			holder, err = os.Open("/dev/mapper/" + volume.DeviceName(late.Group, late.Name))
			require.NoError(t, err)
		}
	}
	errs := m.RemoveAll(m.ctx(), refs)
	require.ErrorIs(t, errs[1], ErrInUse)
	for i, ref := range refs {
		if i != 1 {
			require.NoError(t, m.Remove(m.ctx(), ref))
		}
	}
	require.Equal(t, []string{string(late.Name)}, lvs())
	t.Cleanup(func() { _ = holder.Close() })
	require.Equal(t, volume.Doomed, tagsOf(t, late.Name).State)
	require.ErrorIs(t, m.tryMount(late, m.target("b")), ErrRefused)
	_, err := m.SetState(m.ctx(), late.Group, late.Name, volume.Ready)
	require.Error(t, err, "what is doomed does not come back")
	in, err := m.Inventory(m.ctx())
	require.NoError(t, err)
	require.Equal(t, volume.Doomed, in.Volumes[0].State)

	require.ErrorIs(t, m.Remove(m.ctx(), refs[1]), ErrInUse)
	require.NoError(t, holder.Close())
	require.NoError(t, m.Remove(m.ctx(), refs[1]))
	require.Empty(t, lvs())
}

// Killed after any of its steps, a batch leaves each volume as it was, doomed or gone: no mount gets a doomed
// volume, and the next call removes the rest.
func TestRemoveAllKilledAfterEveryStep(t *testing.T) {
	m, n := newMachine(t), 2
	if inFull() {
		n = 3
	}
	for _, then := range []string{"remove-all", "remove"} {
		deaths := 0
		for die := 1; ; die++ {
			require.Less(t, die, 30)
			for i := range n {
				require.NoError(t, m.records.remove(group, volume.Name(fmt.Sprintf("data-%d", i))))
			}
			specs, refs := m.givenUp(n, volume.Disposal{})
			died := call{Dir: m.dir, Verb: "remove-all", Spec: specs[0], More: specs[1:], Die: die}.run(t)
			if !died {
				require.Empty(t, lvs())
				break
			}
			deaths++
			for _, name := range lvs() {
				s := specs[strings.Index("012", name[len("data-"):])]
				state := tagsOf(t, s.Name).State
				require.Contains(t, []volume.State{volume.Unreferenced, volume.Doomed}, state)
				require.ErrorIs(t, m.tryMount(s, m.target("a")), ErrRefused, "after death %d", die)
			}
			if then == "remove" {
				for _, ref := range refs {
					require.NoError(t, m.Remove(m.ctx(), ref), "after death %d", die)
				}
			} else {
				for _, err := range m.RemoveAll(m.ctx(), refs) {
					require.NoError(t, err, "after death %d", die)
				}
			}
			require.Empty(t, lvs(), "after death %d", die)
		}
		require.Equal(t, n+2, deaths, "remove record, for each; tag doomed, lvremove")
	}
}

// A batch that is killed before its commit has changed nothing permanently: its volumes can be brought back.
func TestUndeleteAfterABatchThatWasKilled(t *testing.T) {
	m := newMachine(t)
	specs, _ := m.givenUp(2, volume.Disposal{})
	require.True(t, call{Dir: m.dir, Verb: "remove-all", Spec: specs[0], More: specs[1:], Die: 2}.run(t), "the records are gone")
	for _, s := range specs {
		_, err := m.SetState(m.ctx(), s.Group, s.Name, volume.Ready)
		require.NoError(t, err)
		require.FileExists(t, m.mount(s, string(s.Name))+"/old")
	}
}

// A batch finishes what a single removal has begun: the volume already has its doomed name, and perhaps still
// its state.
func TestRemoveAllFinishesWhatWasRenamed(t *testing.T) {
	m := newMachine(t)
	_, refs := m.givenUp(3, volume.Disposal{})
	for i := range 2 {
		_, err := m.commitRemoval(m.ctx(), refs[i])
		require.NoError(t, err)
		refs[i].Name = refs[i].Name.Doomed()
	}
	m.shell("lvchange --deltag flexlvm.state=unreferenced --addtag flexlvm.state=doomed %s/%s", group, refs[1].Name)
	for _, err := range m.RemoveAll(m.ctx(), refs) {
		require.NoError(t, err)
	}
	require.Empty(t, lvs())
}
