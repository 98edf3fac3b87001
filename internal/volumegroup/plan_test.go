package volumegroup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

func ssd(id, path string, links ...string) Disk {
	return Disk{ID: id, Path: path, Links: links, Size: 100 * volume.GiB}
}

func declares(name string, patterns ...string) Declaration {
	d := Declaration{Name: name, Group: volume.Group("vg-" + name)}
	for _, p := range patterns {
		d.Selectors = append(d.Selectors, Selector{Path: p})
	}
	return d
}

func reasons(d Decision) map[string]string {
	out := map[string]string{}
	for _, r := range d.Refused {
		out[r.Path] = r.Reason
	}
	return out
}

func taken(d Decision) (paths []string) {
	for _, c := range d.Candidates {
		paths = append(paths, c.Path)
	}
	return paths
}

func TestSelectors(t *testing.T) {
	yes, no := true, false
	disk := Disk{
		ID: "naa.5000c500a1b2c3d4", Path: "/dev/sdb", Size: 4 * volume.TiB, Rotational: true,
		Links: []string{"/dev/disk/by-id/ata-ST4000NM_Z1", "/dev/disk/by-path/pci-0000:00:1f.2-ata-2"},
	}
	for name, c := range map[string]struct {
		s    Selector
		want bool
	}{
		"its path":               {Selector{Path: "/dev/sdb"}, true},
		"a pattern":              {Selector{Path: "/dev/sd*"}, true},
		"a class":                {Selector{Path: "/dev/sd[c-z]"}, false},
		"a link by path":         {Selector{Path: "/dev/disk/by-path/pci-0000:00:1f.2-*"}, true},
		"a link by id":           {Selector{ByID: "ata-ST4000*"}, true},
		"its ID":                 {Selector{ByID: "naa.5000c500*"}, true},
		"a path is no ID":        {Selector{ByID: "pci-0000:00:1f.2-ata-2"}, false},
		"a wildcard and a slash": {Selector{Path: "/dev/*"}, true}, // Validate refuses it
		"both":                   {Selector{ByID: "ata-ST4000*", Path: "/dev/sdb"}, true},
		"one of both":            {Selector{ByID: "ata-ST4000*", Path: "/dev/sdc"}, false},
		"too small":              {Selector{Path: "/dev/sdb", MinSize: 5 * volume.TiB}, false},
		"too large":              {Selector{Path: "/dev/sdb", MaxSize: 3 * volume.TiB}, false},
		"between":                {Selector{Path: "/dev/sdb", MinSize: 4 * volume.TiB, MaxSize: 4 * volume.TiB}, true},
		"rotational":             {Selector{Path: "/dev/sdb", Rotational: &yes}, true},
		"not rotational":         {Selector{Path: "/dev/sdb", Rotational: &no}, false},
		"a size alone":           {Selector{MinSize: 1}, false},
		"nothing":                {Selector{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, Declaration{Selectors: []Selector{c.s}}.Matches(disk))
		})
	}
	require.False(t, Declaration{Selectors: []Selector{{ByID: "[a"}}}.Matches(Disk{Path: "/dev/sdb"}), "no ID and no pattern")
}

func TestValidate(t *testing.T) {
	for says, change := range map[string]func(*Declaration){
		"spec.name":                            func(d *Declaration) { d.Group = "-x" },
		"spec.thinPool.name":                   func(d *Declaration) { d.ThinPool = "a b" },
		"spec.thinPool.size":                   func(d *Declaration) { d.ThinSize = -1 },
		"spec.disks: is empty":                 func(d *Declaration) { d.Selectors = nil },
		"names neither byID nor path":          func(d *Declaration) { d.Selectors = []Selector{{MinSize: 1}} },
		"is not a valid size":                  func(d *Declaration) { d.Selectors[0].MinSize = -1 },
		"is not a valid pattern":               func(d *Declaration) { d.Selectors[0].Path = "/dev/sd[" },
		`spec.disks[0].path "/dev/*": would`:   func(d *Declaration) { d.Selectors[0].Path = "/dev/*" },
		`spec.disks[0].path "/dev/s*": would`:  func(d *Declaration) { d.Selectors[0].Path = "/dev/s*" },
		`spec.disks[0].path "/*/sdb": would`:   func(d *Declaration) { d.Selectors[0].Path = "/*/sdb" },
		`spec.disks[0].byID "*": would match`:  func(d *Declaration) { d.Selectors[0].ByID = "*" },
		`spec.disks[0].byID "[a-z]*": would`:   func(d *Declaration) { d.Selectors[0].ByID = "[a-z]*" },
		`spec.disks[0].path "/dev/?db": would`: func(d *Declaration) { d.Selectors[0].Path = "/dev/?db" },
		`spec.disks[1].byID "?": would match`:  func(d *Declaration) { d.Selectors = append(d.Selectors, Selector{ByID: "?"}) },
	} {
		d := declares("a", "/dev/sdb")
		require.NoError(t, d.Validate())
		change(&d)
		require.ErrorContains(t, d.Validate(), says)
		decisions, _ := Plan(View{Declarations: []Declaration{d}, Disks: []Disk{ssd("serial-1", "/dev/sdb")}})
		require.Contains(t, decisions[0].Problem, says)
		require.Empty(t, decisions[0].Candidates, "nothing is done of what is not understood")
	}
}

// pvOf returns the physical volume on a disk, in the group of a declaration unless groupUUID is empty.
func pvOf(d Declaration, disk Disk, uuid, groupUUID string) PhysicalVolume {
	pv := PhysicalVolume{UUID: uuid, Path: disk.Path, Disk: disk.ID}
	if groupUUID != "" {
		pv.Group, pv.GroupUUID, pv.Tags = d.Group, groupUUID, []string{"other", Tag(d.Name)}
	}
	return pv
}

func TestPlan(t *testing.T) {
	a, b := declares("a", "/dev/sd*"), declares("b", "/dev/sdc")
	extending := a
	extending.Extend = true
	pooled := a
	pooled.ThinPool = "thinpool"
	asking := func(d Declaration, entries ...string) Declaration { d.ReuseDisks = entries; return d }
	sdb, sdc := ssd("serial-1", "/dev/sdb"), ssd("serial-2", "/dev/sdc")
	took := func(stage DiskStage, asked ...string) Ledger {
		return Ledger{Disks: map[string]DiskRecord{"serial-1": {Declaration: "a", Group: a.Group, PVUUID: "pv-1", Stage: stage, ReuseEntries: asked}}}
	}
	madeAnd := func(l Ledger) Ledger {
		l.Groups = map[string]GroupRecord{"a": {Group: a.Group, UUID: "vg-1"}}
		return l
	}
	foreign := PhysicalVolume{UUID: "pv-9", Path: "/dev/sdb", Disk: "serial-1", Group: a.Group, GroupUUID: "vg-9"}
	for name, c := range map[string]struct {
		view    View
		problem string
		group   string
		take    []string
		refused map[string]string // of the first declaration: a part of the reason, by path
	}{
		"two blank disks":  {view: View{Disks: []Disk{sdb, sdc}}, take: []string{"/dev/sdb", "/dev/sdc"}},
		"none that match":  {view: View{Disks: []Disk{ssd("serial-3", "/dev/vda")}}},
		"without identity": {view: View{Disks: []Disk{ssd("", "/dev/sdb")}}, refused: map[string]string{"/dev/sdb": "neither a WWN nor a serial number"}},
		"paths to one disk": {view: View{Disks: []Disk{sdb, ssd("serial-1", "/dev/sdd")}},
			refused: map[string]string{"/dev/sdb": "multipath", "/dev/sdd": "multipath"}},
		"removable":      {view: View{Disks: []Disk{{ID: "serial-1", Path: "/dev/sdb", Removable: true}}}, refused: map[string]string{"/dev/sdb": "removable"}},
		"over a network": {view: View{Disks: []Disk{{ID: "serial-1", Path: "/dev/sdb", Remote: true}}}, refused: map[string]string{"/dev/sdb": "network"}},
		"wanted twice": {view: View{Declarations: []Declaration{a, b}, Disks: []Disk{sdb, sdc}}, take: []string{"/dev/sdb"},
			refused: map[string]string{"/dev/sdc": "VolumeGroup b matches it, too"}},
		"a group of that name": {view: View{Disks: []Disk{sdb, sdc}, PVs: []PhysicalVolume{{UUID: "x", Path: "/dev/vdz1", Group: a.Group, GroupUUID: "vg-9"}}},
			problem: "was not created by a VolumeGroup"},
		"another's group of that name": {view: View{Disks: []Disk{sdb}, PVs: []PhysicalVolume{{UUID: "x", Group: a.Group, GroupUUID: "vg-9", Tags: []string{Tag("z")}}}},
			problem: "VolumeGroup z has created it"},
		"two groups of that name": {view: View{Disks: []Disk{sdb}, PVs: []PhysicalVolume{{UUID: "x", Group: a.Group, GroupUUID: "vg-8"}, {UUID: "y", Group: a.Group, GroupUUID: "vg-9"}}},
			problem: "2 volume groups named"},
		"its group with another UUID": {view: View{Disks: []Disk{sdb}, PVs: []PhysicalVolume{pvOf(a, sdb, "pv-1", "vg-7")}, Ledger: madeAnd(took(DiskMember))},
			problem: "has UUID vg-7, but the one that was created here had vg-1"},
		"two that declare one group": {view: View{Declarations: []Declaration{a, {Name: "z", Group: a.Group, Selectors: []Selector{{Path: "/dev/vda"}}}}, Disks: []Disk{sdb}},
			problem: "neither is created"},
		"another volume group's":  {view: View{Disks: []Disk{sdb}, PVs: []PhysicalVolume{{UUID: "x", Path: "/dev/sdb", Disk: "serial-1", Group: "other", GroupUUID: "vg-2"}}}, refused: map[string]string{"/dev/sdb": "belongs to volume group other"}},
		"a person's pvcreate":     {view: View{Disks: []Disk{sdb}, PVs: []PhysicalVolume{{UUID: "x", Path: "/dev/sdb", Disk: "serial-1"}}}, refused: map[string]string{"/dev/sdb": "physical volume, x"}},
		"made":                    {view: View{Disks: []Disk{sdb}, PVs: []PhysicalVolume{pvOf(a, sdb, "pv-1", "vg-1")}}, group: "vg-1"},
		"made, and a late disk":   {view: View{Disks: []Disk{sdb, sdc}, PVs: []PhysicalVolume{pvOf(a, sdb, "pv-1", "vg-1")}}, group: "vg-1", refused: map[string]string{"/dev/sdc": "set spec.extend"}},
		"made, one written down":  {view: View{Disks: []Disk{sdb, sdc}, PVs: []PhysicalVolume{pvOf(a, sdc, "pv-2", "vg-1")}, Ledger: madeAnd(took(DiskTaken))}, group: "vg-1", refused: map[string]string{"/dev/sdb": "set spec.extend"}},
		"made, and one begun":     {view: View{Disks: []Disk{sdb, sdc}, PVs: []PhysicalVolume{pvOf(a, sdc, "pv-2", "vg-1"), pvOf(a, sdb, "pv-1", "")}, Ledger: madeAnd(took(DiskTaken))}, group: "vg-1", take: []string{"/dev/sdb"}},
		"to be extended":          {view: View{Declarations: []Declaration{extending}, Disks: []Disk{sdb, sdc}, PVs: []PhysicalVolume{pvOf(a, sdb, "pv-1", "vg-1")}}, group: "vg-1", take: []string{"/dev/sdc"}},
		"extended, lacking disks": {view: View{Declarations: []Declaration{extending}, Disks: []Disk{sdb, sdc}, PVs: []PhysicalVolume{pvOf(a, sdb, "pv-1", "vg-1"), {UUID: "m", Group: a.Group, GroupUUID: "vg-1", Tags: []string{Tag("a")}, Missing: true}}}, group: "vg-1", refused: map[string]string{"/dev/sdc": "lacks devices"}},
		"its thin pool":           {view: View{Declarations: []Declaration{pooled}, Disks: []Disk{sdb}, PVs: []PhysicalVolume{pvOf(a, sdb, "pv-1", "vg-1")}, Ledger: madeAnd(took(DiskMember))}, group: "vg-1"},
		"killed before pvcreate":  {view: View{Disks: []Disk{sdb}, Ledger: took(DiskTaken)}, take: []string{"/dev/sdb"}},
		"killed after pvcreate":   {view: View{Disks: []Disk{sdb}, PVs: []PhysicalVolume{pvOf(a, sdb, "pv-1", "")}, Ledger: took(DiskTaken)}, take: []string{"/dev/sdb"}},
		"killed before vgcreate":  {view: View{Disks: []Disk{sdb}, PVs: []PhysicalVolume{pvOf(a, sdb, "pv-1", "")}, Ledger: took(DiskLabelled)}, take: []string{"/dev/sdb"}},
		"its PV is another":       {view: View{Disks: []Disk{sdb}, PVs: []PhysicalVolume{pvOf(a, sdb, "pv-2", "")}, Ledger: took(DiskLabelled)}, refused: map[string]string{"/dev/sdb": "physical volume, pv-2"}},
		"reduced by a person":     {view: View{Disks: []Disk{sdb}, PVs: []PhysicalVolume{pvOf(a, sdb, "pv-1", "")}, Ledger: took(DiskMember)}, refused: map[string]string{"/dev/sdb": "physical volume, pv-1"}},
		"cleared when labelled":   {view: View{Disks: []Disk{sdb}, Ledger: took(DiskLabelled)}, refused: map[string]string{"/dev/sdb": "was cleared since"}},
		"cleared when a member":   {view: View{Disks: []Disk{sdb}, Ledger: took(DiskMember)}, refused: map[string]string{"/dev/sdb": "was cleared since"}},
		"the group is gone":       {view: View{Disks: []Disk{sdb, sdc}, Ledger: madeAnd(took(DiskMember))}, problem: "was created here and is gone", refused: map[string]string{"/dev/sdb": "was cleared since"}},
		"asked for again":         {view: View{Declarations: []Declaration{asking(a, "serial-1@today")}, Disks: []Disk{sdb}, Ledger: madeAnd(took(DiskMember))}, take: []string{"/dev/sdb"}},
		"asked for a new disk":    {view: View{Declarations: []Declaration{asking(a, "serial-2")}, Disks: []Disk{sdc}, Ledger: madeAnd(took(DiskMember))}, take: []string{"/dev/sdc"}},
		"asked for another":       {view: View{Declarations: []Declaration{asking(a, "serial-2")}, Disks: []Disk{sdb}, Ledger: took(DiskMember)}, refused: map[string]string{"/dev/sdb": "was cleared since"}},
		"asked once, cleared twice": {view: View{Declarations: []Declaration{asking(a, "serial-1")}, Disks: []Disk{sdb}, Ledger: took(DiskMember, "serial-1")},
			refused: map[string]string{"/dev/sdb": "was cleared since"}},
		"asked twice": {view: View{Declarations: []Declaration{asking(a, "serial-1", "serial-1@2")}, Disks: []Disk{sdb}, Ledger: took(DiskMember, "serial-1")}, take: []string{"/dev/sdb"}},
		"asked, and full": {view: View{Declarations: []Declaration{asking(a, "serial-1")}, Disks: []Disk{sdb}, PVs: []PhysicalVolume{foreign}, Ledger: took(DiskMember)},
			problem: "was not created by a VolumeGroup"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.view.Declarations == nil {
				c.view.Declarations = []Declaration{a}
			}
			decisions, _ := Plan(c.view)
			d := decisions[0]
			if c.problem != "" {
				require.Contains(t, d.Problem, c.problem)
			} else {
				require.Empty(t, d.Problem)
			}
			require.Equal(t, c.group, d.GroupUUID)
			require.Equal(t, c.take, taken(d))
			got := reasons(d)
			require.Len(t, got, len(c.refused), "%v", got)
			for path, says := range c.refused {
				require.Contains(t, got[path], says)
			}
			require.Equal(t, name == "its thin pool", d.CreatePool)
		})
	}
}

// Both declarations that match one disk report the conflict.
func TestConflictIsReportedByBoth(t *testing.T) {
	decisions, _ := Plan(View{Declarations: []Declaration{declares("a", "/dev/sdb"), declares("b", "/dev/sd*")}, Disks: []Disk{ssd("serial-1", "/dev/sdb"), ssd("serial-2", "/dev/sdc")}})
	require.Contains(t, reasons(decisions[0])["/dev/sdb"], "VolumeGroup b matches it, too")
	require.Contains(t, reasons(decisions[1])["/dev/sdb"], "VolumeGroup a matches it, too")
	require.Equal(t, []string{"/dev/sdc"}, taken(decisions[1]))
}

// An existing group of flexlvm is recorded in the ledger with its disks, even if the ledger knew nothing of it.
func TestRecognise(t *testing.T) {
	a := declares("a", "/dev/sdb")
	a.ThinPool = "thinpool"
	sdb := ssd("serial-1", "/dev/sdb")
	view := View{Declarations: []Declaration{a}, Disks: []Disk{sdb}, PVs: []PhysicalVolume{pvOf(a, sdb, "pv-1", "vg-1")}}
	decisions, ledger := Plan(view)
	require.Equal(t, map[string]GroupRecord{"a": {Group: a.Group, UUID: "vg-1", PoolMade: true}}, ledger.Groups)
	require.Equal(t, DiskRecord{Declaration: "a", Group: a.Group, PVUUID: "pv-1", Stage: DiskMember}, ledger.Disks["serial-1"])
	require.False(t, decisions[0].CreatePool, "nobody knows whether a person has removed it")
	require.Nil(t, view.Ledger.Disks, "the plan changes nothing of what it is made from")

	view.Ledger = Ledger{Groups: map[string]GroupRecord{"a": {Group: a.Group}}, Disks: map[string]DiskRecord{"serial-1": {Declaration: "a", Group: a.Group, PVUUID: "pv-1", Stage: DiskLabelled}}}
	decisions, ledger = Plan(view)
	require.Equal(t, "vg-1", ledger.Groups["a"].UUID)
	require.True(t, decisions[0].CreatePool, "an earlier process was killed before it")
}

// A disk that is a discovered volume, or has a part that is one, is never used for a group. A disk that
// was one is used only if a person requests it.
func TestPlanOfDiscoveredDisks(t *testing.T) {
	disk := ssd("naa.1", "/dev/sdb")
	for name, c := range map[string]struct {
		discovered Discovered
		again      []string
		says       string
	}{
		"none":            {Discovered{Disks: map[string]bool{"naa.2": true, "fs-u": true}}, nil, ""},
		"it is":           {Discovered{Disks: map[string]bool{"naa.1": true}}, []string{"naa.1"}, "the VolumeDiscovery offers it as a volume"},
		"a part of it is": {Discovered{Disks: map[string]bool{"naa.1": false, "naa.1-part2": true}}, []string{"naa.1"}, "the VolumeDiscovery offers it as a volume (naa.1-part2)"},
		"it was":          {Discovered{Disks: map[string]bool{"naa.1": false}}, nil, "the VolumeDiscovery offered it as a volume before"},
		"it was, asked":   {Discovered{Disks: map[string]bool{"naa.1": false}}, []string{"naa.1@mine"}, ""},
		"unknown":         {Discovered{Unknown: "nobody has looked"}, []string{"naa.1"}, "nobody has looked"},
	} {
		d := declares("a", "/dev/sd*")
		d.Discovered, d.ReuseDisks = c.discovered, c.again
		decisions, _ := Plan(View{Declarations: []Declaration{d}, Disks: []Disk{disk}})
		if c.says == "" {
			require.Equal(t, []string{"/dev/sdb"}, taken(decisions[0]), name)
			continue
		}
		require.Empty(t, taken(decisions[0]), name)
		require.Contains(t, reasons(decisions[0])["/dev/sdb"], c.says, name)
	}
}
