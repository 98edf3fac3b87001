package volumegroup

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A group that was created here and is gone is not created again from other blank disks, even if only
// the ledger, the status or a tag records it.
func TestLostGroupIsNotMadeAgain(t *testing.T) {
	a := declares("a", "/dev/sd*")
	reported := a
	reported.Reported = true
	asking := a
	asking.ReuseDisks = []string{"serial-2"}
	b := declares("b", "/dev/sd*")
	b.Group = a.Group
	made := Ledger{Groups: map[string]GroupRecord{"a": {Group: a.Group, UUID: "vg-1", PoolMade: true}}}
	begun := Ledger{
		Groups: map[string]GroupRecord{"a": {Group: a.Group, Lost: "vg-1"}},
		Disks: map[string]DiskRecord{
			"serial-2": {Declaration: "a", Group: a.Group, PVUUID: "pv-2", Stage: DiskTaken, ReuseEntries: []string{"serial-2"}},
			"serial-3": {Declaration: "a", Group: a.Group, PVUUID: "pv-3", Stage: DiskTaken},
		},
	}
	renamed := []PhysicalVolume{{UUID: "pv-1", Path: "/dev/sdb", Disk: "serial-1", Group: "renamed", GroupUUID: "vg-1", Tags: []string{Tag("a")}}}
	spare, other := ssd("serial-2", "/dev/sdc"), ssd("serial-3", "/dev/sdd")
	for name, c := range map[string]struct {
		view    View
		problem string // empty: the disks are used
		take    []string
	}{
		"never made":                       {View{Declarations: []Declaration{a}, Disks: []Disk{spare}}, "", []string{"/dev/sdc"}},
		"made":                             {View{Declarations: []Declaration{a}, Disks: []Disk{spare}, Ledger: made}, "(UUID vg-1) was created here and is gone", nil},
		"made, and asked for":              {View{Declarations: []Declaration{asking}, Disks: []Disk{spare}, Ledger: made}, "", []string{"/dev/sdc"}},
		"made by another declaration":      {View{Declarations: []Declaration{b}, Disks: []Disk{spare}, Ledger: made}, "(UUID vg-1) was created here and is gone", nil},
		"only reported":                    {View{Declarations: []Declaration{reported}, Disks: []Disk{spare}}, "(UUID unknown) was created here and is gone", nil},
		"renamed, and forgotten":           {View{Declarations: []Declaration{a}, Disks: []Disk{spare}, PVs: renamed}, "`vgrename vg-1 vg-a`", nil},
		"being made again, as asked":       {View{Declarations: []Declaration{a}, Disks: []Disk{spare, other}, Ledger: begun}, "", []string{"/dev/sdc", "/dev/sdd"}},
		"the asked disk is missing by now": {View{Declarations: []Declaration{a}, Disks: []Disk{other}, Ledger: begun}, "(UUID vg-1) was created here and is gone", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.view.Ledger = c.view.Ledger.WithReported(c.view.Declarations)
			decisions, _ := Plan(c.view)
			require.Equal(t, c.take, taken(decisions[0]))
			if c.problem == "" {
				require.Empty(t, decisions[0].Problem)
			} else {
				require.Contains(t, decisions[0].Problem, c.problem)
			}
		})
	}
}

// A reported group is recorded in the ledger, because the next report overwrites this one.
func TestReportedGroupIsRemembered(t *testing.T) {
	a := declares("a", "/dev/sd*")
	a.Reported = true
	ledger := Ledger{}.WithReported([]Declaration{a})
	a.Reported = false
	require.Equal(t, ledger, ledger.WithReported([]Declaration{a}))
	decisions, _ := Plan(View{Declarations: []Declaration{a}, Disks: []Disk{ssd("serial-2", "/dev/sdc")}, Ledger: ledger})
	require.Contains(t, decisions[0].Problem, "is gone")
	require.Empty(t, decisions[0].Candidates)

	back := []PhysicalVolume{{UUID: "pv-1", Path: "/dev/sdb", Disk: "serial-1", Group: a.Group, GroupUUID: "vg-1", Tags: []string{Tag("a")}}}
	decisions, ledger = Plan(View{Declarations: []Declaration{a}, Disks: []Disk{ssd("serial-1", "/dev/sdb")}, PVs: back, Ledger: ledger})
	require.Empty(t, decisions[0].Problem, "it is there again")
	require.Equal(t, GroupRecord{Group: a.Group, UUID: "vg-1", PoolMade: true}, ledger.Groups["a"])
}
