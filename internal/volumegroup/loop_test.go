package volumegroup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

func loops(name, file string) Declaration {
	return Declaration{Name: name, Group: volume.Group("vg-" + name), Loop: &Loop{File: file, Size: volume.GiB, ForTests: true}}
}

func TestLoopIsChecked(t *testing.T) {
	require.NoError(t, loops("a", "/srv/a.img").Validate())
	for says, change := range map[string]func(*Declaration){
		`spec.loop.file "a.img": is not the absolute path`:         func(d *Declaration) { d.Loop.File = "a.img" },
		`spec.loop.file "/srv/../a.img": is not the absolute path`: func(d *Declaration) { d.Loop.File = "/srv/../a.img" },
		`spec.loop.file "/srv/": is not the absolute path`:         func(d *Declaration) { d.Loop.File = "/srv/" },
		`spec.loop.size "1 MiB": has to be 640 MiB to 8 TiB`:       func(d *Declaration) { d.Loop.Size = volume.MiB },
		`spec.loop.size "1073741825": has to be a multiple of 4`:   func(d *Declaration) { d.Loop.Size++ },
		`spec.loop.forTests: is missing`:                           func(d *Declaration) { d.Loop.ForTests = false },
		`spec.loop: excludes spec.disks`:                           func(d *Declaration) { d.Selectors = []Selector{{Path: "/dev/sdb"}} },
	} {
		d := loops("a", "/srv/a.img")
		change(&d)
		require.ErrorContains(t, d.Validate(), says)
	}
}

// No pattern matches a loop device, and a declaration matches only its own file.
func TestLoopIsMatchedByItsDeclarationAlone(t *testing.T) {
	device := Disk{ID: "loop-1", Path: "/dev/loop0", Size: volume.GiB, Loop: "/srv/a.img"}
	require.True(t, loops("a", "/srv/a.img").Matches(device))
	require.False(t, loops("a", "/srv/b.img").Matches(device))
	require.False(t, loops("a", "/srv/a.img").Matches(ssd("serial-1", "/dev/sdb")))
	require.False(t, declares("a", "/dev/loop*").Matches(device))
	require.False(t, Declaration{Selectors: []Selector{{ByID: "loop-*"}}}.Matches(device))

	decisions, _ := Plan(View{Declarations: []Declaration{loops("a", "/srv/a.img")}})
	require.True(t, decisions[0].NeedsLoop())
	decisions, _ = Plan(View{Declarations: []Declaration{loops("a", "/srv/a.img")}, Disks: []Disk{device}})
	require.False(t, decisions[0].NeedsLoop())
	require.Equal(t, []string{"/dev/loop0"}, taken(decisions[0]))
	lost := Ledger{Groups: map[string]GroupRecord{"a": {Group: "vg-a", UUID: "vg-1"}}}
	decisions, _ = Plan(View{Declarations: []Declaration{loops("a", "/srv/a.img")}, Ledger: lost})
	require.False(t, decisions[0].NeedsLoop(), "no other file takes the place of one that is gone")
	require.Contains(t, decisions[0].Problem, "was created here and is gone")
}
