package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// fakeEngine holds volumes and records their state changes.
type fakeEngine struct {
	volumes []inventory.Volume
	err     error // of SetState
	moves   []string
	unseen  []volume.Group
	unread  error // of UnseenGroupsOf
}

func (f *fakeEngine) List(context.Context) ([]inventory.Volume, error) { return f.volumes, nil }

func (f *fakeEngine) UnseenGroupsOf(context.Context, volume.Name) ([]volume.Group, error) {
	return f.unseen, f.unread
}

func (f *fakeEngine) SetState(_ context.Context, g volume.Group, n volume.Name, to volume.State) (inventory.Volume, error) {
	if f.err != nil {
		return inventory.Volume{}, f.err
	}
	f.moves = append(f.moves, string(g)+"/"+string(n)+" "+string(to))
	for _, v := range f.volumes {
		if v.Group == g && v.Name == n {
			v.State = to
			return v, nil
		}
	}
	return inventory.Volume{}, errors.New("no such volume")
}

func (f *fakeEngine) Disown(_ context.Context, g volume.Group, n volume.Name) error {
	f.moves = append(f.moves, string(g)+"/"+string(n)+" disowned")
	return f.err
}

func (f *fakeEngine) PlanAdoption(context.Context, node.Adoption) (inventory.Volume, error) {
	return adopted(volume.GiB), f.err
}

func (f *fakeEngine) Adopt(_ context.Context, a node.Adoption) (inventory.Volume, error) {
	f.moves = append(f.moves, a.String()+" adopted")
	return adopted(1000 * volume.MiB), f.err
}

// adopted returns a person's logical volume as the engine describes it.
func adopted(size volume.Bytes) inventory.Volume {
	return changed(func(v *inventory.Volume) {
		v.Name, v.State, v.Size, v.FS = "wiki", volume.Retained, size, "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"
	})
}

type brokenList struct{ fakeEngine }

func (brokenList) List(context.Context) ([]inventory.Volume, error) { return nil, errors.New("locked") }

var at = time.Date(2026, 11, 20, 18, 0, 0, 0, time.UTC)

func someVolumes() []inventory.Volume {
	return []inventory.Volume{
		{Group: "flexlvm", Name: "pvc-2", State: volume.Ready, Size: 2 * volume.GiB, Allocated: 2156 * volume.MiB, Namespace: "shop", Kind: volume.Claim, Created: at, LastUsed: at, Released: at, Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone, Active: true, Open: true, Mounts: []string{"/a", "/b"}},
		{Group: "flexlvm", Name: "doomed_pvc-1", State: volume.Doomed, Size: 64 * volume.MiB, Allocated: 300 * volume.MiB, Namespace: "shop", Kind: volume.Claim, Created: at},
		{Group: "fast", Name: "pvc-2", Allocated: 300 * volume.MiB, Problem: "its tags make no sense"},
		released(),
	}
}

// released returns a volume whose claim was deleted.
func released() inventory.Volume {
	return inventory.Volume{
		Group: "flexlvm", GroupUUID: "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S", Name: "pvc-3", State: volume.Unreferenced, Size: volume.GiB, Allocated: 1148 * volume.MiB,
		Namespace: "shop", Cluster: "7f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11", Kind: volume.Claim,
		Created: at, LastUsed: at, Released: at.Add(time.Hour), Reclaim: volume.ReclaimLazy, Wipe: volume.WipeZero,
	}
}

func TestListVolumes(t *testing.T) {
	ctx := context.Background()
	list := func(l lister, group string) ([]inventory.Volume, error) {
		o := volumesOptions{group: group}
		return o.list(ctx, l)
	}
	all, err := list(&fakeEngine{volumes: someVolumes()}, "")
	require.NoError(t, err)
	require.Len(t, all, 4)
	fast, err := list(&fakeEngine{volumes: someVolumes()}, "fast")
	require.NoError(t, err)
	require.Len(t, fast, 1)
	none, err := list(&fakeEngine{}, "fast")
	require.NoError(t, err)
	require.NotNil(t, none, "an empty list is [] in JSON, not null")
	_, err = list(&fakeEngine{}, "a/b")
	require.ErrorContains(t, err, "--group")
	_, err = list(&brokenList{}, "")
	require.ErrorContains(t, err, "locked")
}

func TestPrintVolumes(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printVolumes(&out, someVolumes(), asTable))
	var cells [][]string
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		cells = append(cells, strings.Fields(line))
	}
	require.Equal(t, strings.Fields("GROUP NAME STATE SIZE DEVICE NAMESPACE KIND LAST-USED IN-USE RELEASED RECLAIM WIPE NOTE"), cells[0])
	require.Equal(t, strings.Fields("fast pvc-2 - - 300MiB - - - no - - - its tags make no sense"), cells[1])
	require.Equal(t, strings.Fields("flexlvm doomed_pvc-1 doomed 64MiB 300MiB shop claim - no - - - -"), cells[2])
	require.Equal(t, strings.Fields("flexlvm pvc-2 ready 2GiB 2.10GiB shop claim 2026-11-20T18:00:00Z mounted - - - -"), cells[3])
	require.Equal(t, strings.Fields("flexlvm pvc-3 unreferenced 1GiB 1.12GiB shop claim 2026-11-20T18:00:00Z no 2026-11-20T19:00:00Z lazy zero -"), cells[4])

	out.Reset()
	require.NoError(t, printVolumes(&out, []inventory.Volume{}, asJSON))
	require.Equal(t, "[]\n", out.String())
}

func TestPick(t *testing.T) {
	list := someVolumes()
	v, err := pick(list, "pvc-1")
	require.NoError(t, err)
	require.Equal(t, volume.Name("doomed_pvc-1"), v.Name)
	_, err = pick(list, "pvc-2")
	require.ErrorContains(t, err, "flexlvm/pvc-2, fast/pvc-2; choose one with --group")
	_, err = pick(list, "pvc-9")
	require.ErrorContains(t, err, `no flexlvm volume is called "pvc-9"`)
	require.ErrorContains(t, err, "permanently lost")

	v, err = pick(append(list, inventory.Volume{Group: "flexlvm", Name: "pvc-1"}), "pvc-1")
	require.NoError(t, err)
	require.Equal(t, volume.Name("pvc-1"), v.Name, "one that lives goes before one that is being removed")
}

func TestFind(t *testing.T) {
	e := &fakeEngine{volumes: someVolumes()}
	find := func(group, name string) (inventory.Volume, error) {
		o := volumesOptions{group: group}
		return o.find(t.Context(), e, name)
	}
	for _, name := range []string{"fast/pvc-2", "/dev/fast/pvc-2"} {
		v, err := find("", name)
		require.NoError(t, err)
		require.Equal(t, volume.Group("fast"), v.Group)
	}
	_, err := find("flexlvm", "fast/pvc-2")
	require.ErrorContains(t, err, `--group "flexlvm": is not the group of fast/pvc-2`)
	_, err = find("", "fast/pvc-3")
	require.ErrorContains(t, err, `no flexlvm volume is called "pvc-3"; `)
	_, err = find("", "a b/pvc-3")
	require.ErrorContains(t, err, "--group")

	// A volume in a group that LVM does not show is not lost.
	e.unseen = []volume.Group{"disks"}
	for _, group := range []string{"", "disks"} {
		_, err = find(group, "pvc-9")
		require.ErrorContains(t, err, `no flexlvm volume is called "pvc-9", but this node has had it in volume group disks, which LVM does not show now: bring its disks back (`+"`flexlvm doctor --group disks`")
		require.NotContains(t, err.Error(), "lost")
	}
	_, err = find("fast", "pvc-9")
	require.ErrorContains(t, err, "permanently lost")
	e.unread = errors.New("LVM is locked")
	_, err = find("", "pvc-9")
	require.ErrorContains(t, err, "which could not be determined: LVM is locked")
}

func TestLayoutInWords(t *testing.T) {
	for want, h := range map[string]volume.Shape{
		"linear": {Layout: volume.Linear},
		"striped over 3 devices, stripe size 64 KiB":  {Layout: volume.Striped, Stripes: 3, StripeKiB: 64},
		"raid1, 2 copies, 12.50 % in sync":            {Layout: volume.Raid1, Mirrors: 1},
		"thin, in pool thinpool, takes at most 2 GiB": {Layout: volume.Thin, ThinPool: "thinpool"},
		"-": {},
	} {
		require.Equal(t, want, layout(inventory.Volume{Shape: h, SyncPercent: "12.50", AllocatedWhenFull: 2 * volume.GiB}))
	}
}

func TestPrintVolume(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printVolume(&out, someVolumes()[0], asTable))
	require.Contains(t, out.String(), "Size:           2147483648 (2 GiB)\n")
	require.Contains(t, out.String(), "Mounted on:     /a\n                /b\n")
	require.Contains(t, out.String(), "Released:       -\nReclaim:        -\nWipe:           -\n")
	require.Contains(t, out.String(), "Note:           -\n")
	out.Reset()
	require.NoError(t, printVolume(&out, released(), asTable))
	require.Contains(t, out.String(), "Released:       2026-11-20T19:00:00Z\nReclaim:        lazy\nWipe:           zero\n")
	out.Reset()
	half := changed(func(v *inventory.Volume) { v.State, v.CloneOfFS = volume.Creating, "6e2c0b0a" })
	require.NoError(t, printVolume(&out, half, asTable))
	require.Contains(t, out.String(), "State:          creating, incomplete copy of file system 6e2c0b0a\n")
}

// changed returns the volume of released with a change.
func changed(change func(*inventory.Volume)) inventory.Volume {
	v := released()
	change(&v)
	return v
}

func TestForgetAndRetain(t *testing.T) {
	state := func(s volume.State) func(*inventory.Volume) { return func(v *inventory.Volume) { v.State = s } }
	inDirectories := volume.Shape{Layout: volume.Directory, DirectoryPool: "small"}
	for name, c := range map[string]struct {
		volume inventory.Volume
		to     volume.State
		says   string
		err    string
	}{
		"retain one nobody wants":  {released(), volume.Retained, "flexlvm/pvc-3 is retained now (it was unreferenced): it stays until somebody undeletes or forgets it\n", ""},
		"retain one that is open":  {changed(func(v *inventory.Volume) { v.Open = true }), volume.Retained, "is retained now", ""},
		"retain an orphan":         {changed(state(volume.Ready)), volume.Retained, "is retained now (it was ready)", ""},
		"retain a retained one":    {changed(state(volume.Retained)), volume.Retained, "flexlvm/pvc-3 is already retained\n", ""},
		"retain one that pods use": {changed(func(v *inventory.Volume) { v.State, v.Mounts = volume.Ready, []string{"/x"} }), volume.Retained, "", "is mounted, so a pod uses it"},
		"forget a retained one":    {changed(state(volume.Retained)), volume.Unreferenced, "is unreferenced now (it was retained): it is evicted when its room is needed; until then `flexlvm volumes undelete pvc-3`", ""},
		"forget an orphan":         {changed(state(volume.Ready)), volume.Unreferenced, "is unreferenced now (it was ready)", ""},
		"forget one, immediate":    {changed(func(v *inventory.Volume) { v.State, v.Reclaim = volume.Retained, volume.ReclaimImmediate }), volume.Unreferenced, "the node daemon removes it in its next round", ""},
		"forget a forgotten one":   {released(), volume.Unreferenced, "flexlvm/pvc-3 is already unreferenced\n", ""},
		"forget one that is open":  {changed(func(v *inventory.Volume) { v.State, v.Open = volume.Ready, true }), volume.Unreferenced, "", "is open, so a pod uses it"},
		"forget a half made one":   {changed(state(volume.Creating)), volume.Unreferenced, "is unreferenced now (it was creating)", ""},
		"forget one being made":    {changed(func(v *inventory.Volume) { v.State, v.Open = volume.Creating, true }), volume.Unreferenced, "", "is open, so a pod uses it"},
		"retain a doomed one":      {changed(func(v *inventory.Volume) { v.State, v.Name = volume.Doomed, "doomed_pvc-3" }), volume.Retained, "", "flexlvm/doomed_pvc-3 is doomed"},
		"retain nonsense":          {changed(func(v *inventory.Volume) { v.State, v.Problem = "", "two states" }), volume.Retained, "", "are invalid (two states); correct them with lvchange --addtag and --deltag, then retry"},
		"retain a newer release's": {changed(func(v *inventory.Volume) { v.State, v.Problem, v.Unknown = "", "a tag", true }), volume.Retained, "", "(a tag); a newer release of flexlvm has probably written this: change nothing, and upgrade"},
		"retain a broken record's": {changed(func(v *inventory.Volume) { v.State, v.Problem, v.Shape = "", "no size", inDirectories }), volume.Retained, "", "the record of volume flexlvm/pvc-3 in directory pool flexlvm:small is invalid (no size); correct it, then retry"},
		"retain a pool": {changed(func(v *inventory.Volume) {
			v.State, v.Problem, v.Shape = "", "directory pool flexlvm:pvc-3 takes no new volumes: too small", volume.Shape{Layout: volume.Directory, DirectoryPool: "pvc-3"}
		}), volume.Retained, "", "flexlvm/pvc-3 is not a volume: directory pool flexlvm:pvc-3 takes no new volumes: too small"},
		"retain another": {changed(func(v *inventory.Volume) { v.Name = "pvc-4" }), volume.Retained, "", "no flexlvm volume"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &fakeEngine{volumes: []inventory.Volume{c.volume}}
			o := volumesSetStateOptions{to: c.to}
			var out bytes.Buffer
			err := o.setState(context.Background(), e, "pvc-3", &out)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.Empty(t, out.String())
				require.Empty(t, e.moves)
				return
			}
			require.NoError(t, err)
			require.Contains(t, out.String(), c.says)
			if c.volume.State == c.to {
				require.Empty(t, e.moves)
				return
			}
			require.Equal(t, []string{"flexlvm/pvc-3 " + string(c.to)}, e.moves)
		})
	}
	e := &fakeEngine{volumes: []inventory.Volume{released()}, err: node.ErrInUse}
	o := volumesSetStateOptions{to: volume.Retained}
	require.ErrorIs(t, o.setState(context.Background(), e, "pvc-3", &bytes.Buffer{}), node.ErrInUse)
}
