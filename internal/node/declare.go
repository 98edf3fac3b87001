package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// MakeDeclared makes and extends the volume groups that are declared for this node, and
// returns what became of each. confirm is called right before anything of a declaration
// is done; its error means that nothing is done.
//
// A disk is written down before it is touched, with the UUID that its physical volume is
// going to have, so a later call knows what an earlier one had begun, whenever that was
// killed, and does not take for its own what a person has made.
func (e *Engine) MakeDeclared(ctx context.Context, all []volumegroup.Declaration, confirm func(context.Context, volumegroup.Declaration) error) ([]volumegroup.Outcome, error) {
	release, err := e.lockDeclared(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	m := maker{tools: hostTools{e}, confirm: confirm, after: e.after, now: e.now}
	return m.run(ctx, all)
}

// lockDeclared keeps the daemon and `flexlvm vg create --loop` from taking disks at the same time.
func (e *Engine) lockDeclared(ctx context.Context) (func(), error) {
	return e.locks.Acquire(ctx, "declared.lock", "declared volume groups")
}

// groupTools is what a maker needs of the host.
type groupTools interface {
	readLedger() (volumegroup.Ledger, error)
	writeLedger(volumegroup.Ledger) error
	disks() ([]volumegroup.Disk, error)
	// makeLoop makes and attaches a loop device, unless that was done.
	makeLoop(ctx context.Context, want volumegroup.Loop) error
	physicalVolumes(ctx context.Context) ([]volumegroup.PV, error)
	checkBlank(ctx context.Context, device string) error
	// createPhysicalVolume checks once more that the device has no signature and no user.
	createPhysicalVolume(ctx context.Context, device, uuid string) error
	// createGroup and extendGroup overwrite devices that are no physical volumes.
	createGroup(ctx context.Context, g volume.Group, tag string, devices []string) (uuid string, err error)
	extendGroup(ctx context.Context, g volume.Group, uuid string, devices []string) error
	// makePool makes a thin pool, unless it is there with our tags.
	makePool(ctx context.Context, p lvm.NewThinPool) error
}

// A maker carries out what volumegroup.Plan decides.
type maker struct {
	tools   groupTools
	confirm func(context.Context, volumegroup.Declaration) error
	after   func(step string)
	now     func() time.Time
	ledger  volumegroup.Ledger
}

// run is given all declarations of the node: waits of others end.
func (m *maker) run(ctx context.Context, all []volumegroup.Declaration) ([]volumegroup.Outcome, error) {
	outcomes, err := m.carryOutAll(ctx, all)
	if err != nil {
		return nil, err
	}
	return outcomes, m.endWaits(outcomes)
}

func (m *maker) carryOutAll(ctx context.Context, all []volumegroup.Declaration) ([]volumegroup.Outcome, error) {
	view := volumegroup.View{Declarations: all}
	var err error
	if view.Ledger, err = m.tools.readLedger(); err != nil {
		return nil, err
	}
	if m.ledger = view.Ledger.WithReported(all); !sameLedger(m.ledger, view.Ledger) {
		if err := m.record("remember groups"); err != nil {
			return nil, err
		}
		view.Ledger = m.ledger
	}
	decisions, ledger, err := m.plan(ctx, view)
	if err != nil {
		return nil, err
	}
	problems := m.makeLoops(ctx, decisions)
	if len(problems) > 0 {
		if decisions, ledger, err = m.plan(ctx, view); err != nil {
			return nil, err
		}
		for i := range decisions {
			if problem := problems[decisions[i].Declaration.Name]; problem != "" {
				decisions[i].Problem = problem
			}
		}
	}
	m.ledger = ledger
	if !sameLedger(ledger, view.Ledger) {
		if err := m.record("recognise groups"); err != nil {
			return nil, err
		}
	}
	outcomes := make([]volumegroup.Outcome, 0, len(decisions))
	for _, d := range decisions {
		outcomes = append(outcomes, m.carryOut(ctx, d))
	}
	return outcomes, nil
}

// plan looks at the host, and decides.
func (m *maker) plan(ctx context.Context, view volumegroup.View) (all []volumegroup.Decision, l volumegroup.Ledger, err error) {
	if view.Disks, err = m.tools.disks(); err != nil {
		return nil, l, err
	}
	if view.PVs, err = m.tools.physicalVolumes(ctx); err != nil {
		return nil, l, err
	}
	all, l = volumegroup.Plan(view)
	return all, l, nil
}

// makeLoops makes the loop devices that are declared and not there, and returns why one could
// not be made, or an empty text, for each that it has tried to.
func (m *maker) makeLoops(ctx context.Context, decisions []volumegroup.Decision) map[string]string {
	out := map[string]string{}
	for _, d := range decisions {
		if !d.LacksLoop() {
			continue
		}
		out[d.Declaration.Name] = ""
		err := m.confirm(ctx, d.Declaration)
		if err == nil {
			err = m.tools.makeLoop(ctx, *d.Declaration.Loop)
		}
		if err != nil {
			out[d.Declaration.Name] = err.Error()
		}
	}
	return out
}

func sameLedger(a, b volumegroup.Ledger) bool {
	sameDisk := func(a, b volumegroup.TakenDisk) bool { return reflect.DeepEqual(a, b) }
	return maps.Equal(a.Groups, b.Groups) && maps.EqualFunc(a.Disks, b.Disks, sameDisk) && maps.EqualFunc(a.Waits, b.Waits, time.Time.Equal)
}

func (m *maker) record(step string) error {
	if err := m.tools.writeLedger(m.ledger); err != nil {
		return err
	}
	m.after(step)
	return nil
}

// carryOut does what is decided of one declaration. An error of one keeps no other from
// being carried out.
func (m *maker) carryOut(ctx context.Context, d volumegroup.Decision) volumegroup.Outcome {
	m.refuseFull(ctx, &d)
	if d.HoldBack(); d.Problem == "" {
		if err := m.await(&d); err != nil {
			d.Problem = err.Error()
		}
	}
	if d.Problem != "" || len(d.Take) == 0 && !d.MakePool {
		return volumegroup.NewOutcome(d)
	}
	if err := m.confirm(ctx, d.Declaration); err != nil {
		out := volumegroup.NewOutcome(d)
		out.Message = fmt.Sprintf("%s; nothing is changed: %v", out.Message, err)
		return out
	}
	err := m.take(ctx, &d)
	if err == nil && d.GroupUUID != "" {
		err = m.pool(ctx, d)
	}
	out := volumegroup.NewOutcome(d)
	out.Changed = out.State != volumegroup.Waiting // physical volumes alone are no event
	if err != nil {
		out.State, out.Message = volumegroup.Refused, err.Error()
	}
	return out
}

// refuseFull moves the disks that are not blank from those to be taken to those refused.
func (m *maker) refuseFull(ctx context.Context, d *volumegroup.Decision) {
	var blank []volumegroup.Candidate
	for _, c := range d.Take {
		if !c.Begun {
			if err := m.tools.checkBlank(ctx, c.Path); err != nil {
				d.Refused = append(d.Refused, volumegroup.Refusal{Disk: c.Disk, Reason: err.Error(), Passing: errors.Is(err, lvm.ErrOpen)})
				continue
			}
		}
		blank = append(blank, c)
	}
	d.Take = blank
}

// take makes members of the disks that are to be taken, and the group where it is not there.
func (m *maker) take(ctx context.Context, d *volumegroup.Decision) error {
	if len(d.Take) == 0 {
		return nil
	}
	if err := m.reserve(d); err != nil {
		return err
	}
	if err := m.label(ctx, d); err != nil {
		return err
	}
	if err := m.await(d); err != nil || len(d.Take) == 0 {
		return err
	}
	if d.HoldBack(); d.Problem != "" {
		return errors.New(d.Problem)
	}
	devices, err := m.made(ctx, d)
	if err != nil {
		return err
	}
	if d.GroupUUID == "" {
		d.GroupUUID, err = m.tools.createGroup(ctx, d.Declaration.Group, volumegroup.Tag(d.Declaration.Name), devices)
		d.MakePool = d.Declaration.ThinPool != ""
	} else {
		err = m.tools.extendGroup(ctx, d.Declaration.Group, d.GroupUUID, devices)
	}
	if err != nil {
		return err
	}
	m.after("put disks into the group")
	made := m.ledger.Groups[d.Declaration.Name]
	made.UUID, made.Lost = d.GroupUUID, ""
	m.ledger.Groups[d.Declaration.Name] = made
	delete(m.ledger.Waits, d.Declaration.Name)
	for _, c := range d.Take {
		m.stage(c.ID, volumegroup.DiskMember)
		d.Members = append(d.Members, c.Disk)
	}
	return m.record("record the group")
}

// reserve writes down the disks, before any of them is touched.
func (m *maker) reserve(d *volumegroup.Decision) error {
	name := d.Declaration.Name
	for i := range d.Take {
		c := &d.Take[i]
		if c.PV == "" {
			uuid, err := lvm.NewPhysicalVolumeUUID()
			if err != nil {
				return err
			}
			c.PV = uuid
		}
		if c.Begun {
			continue
		}
		taken := volumegroup.TakenDisk{Declaration: name, Group: d.Declaration.Group, PV: c.PV, Stage: volumegroup.DiskTaken, Asked: m.ledger.Disks[c.ID].Asked}
		if c.Asked != "" && !slices.Contains(taken.Asked, c.Asked) {
			taken.Asked = append(taken.Asked, c.Asked)
		}
		m.ledger.Disks[c.ID] = taken
	}
	if d.GroupUUID == "" {
		m.ledger.Groups[name] = volumegroup.MadeGroup{Group: d.Declaration.Group, Lost: d.Lost}
	}
	return m.record("record the disks")
}

// label makes physical volumes of the disks, and writes down that they are. A disk of which
// none could be made is refused.
func (m *maker) label(ctx context.Context, d *volumegroup.Decision) error {
	var labelled []volumegroup.Candidate
	for _, c := range d.Take {
		if !c.Begun {
			if passing, err := m.labelOne(ctx, c); err != nil {
				d.Refused = append(d.Refused, volumegroup.Refusal{Disk: c.Disk, Reason: err.Error(), Passing: passing})
				continue
			}
		}
		m.stage(c.ID, volumegroup.DiskLabelled)
		labelled = append(labelled, c)
	}
	d.Take = labelled
	return m.record("record the physical volumes")
}

// made returns the paths at which the disks are by now, each of which is the physical
// volume that was made of it here, and in no group. vgcreate and vgextend would make
// physical volumes of other devices without asking, and take those of anybody. An error
// means that no disk may join the group; what is to be done is decided anew next time.
func (m *maker) made(ctx context.Context, d *volumegroup.Decision) (devices []string, err error) {
	pvs, err := m.tools.physicalVolumes(ctx)
	if err != nil {
		return nil, err
	}
	for i := range d.Take {
		c := &d.Take[i]
		at := slices.IndexFunc(pvs, func(pv volumegroup.PV) bool {
			return pv.UUID == c.PV && pv.Disk == c.ID && !pv.Missing
		})
		if at < 0 {
			return nil, fmt.Errorf("disk %s is not the physical volume %s any more, which was made of it here; no disk joins volume group %s before all are looked at again", c.ID, c.PV, d.Declaration.Group)
		}
		if group := pvs[at].Group; group != "" {
			return nil, fmt.Errorf("disk %s is in volume group %s by now; no disk joins volume group %s before all are looked at again", c.ID, group, d.Declaration.Group)
		}
		c.Path = pvs[at].Path
		if err := m.same(c.Disk); err != nil {
			return nil, err
		}
		devices = append(devices, c.Path)
	}
	return devices, nil
}

// labelOne also reports whether an error may pass.
func (m *maker) labelOne(ctx context.Context, c volumegroup.Candidate) (passing bool, err error) {
	if err := m.same(c.Disk); err != nil {
		return false, err
	}
	if err := m.tools.checkBlank(ctx, c.Path); err != nil { // somebody may have written to it since
		return errors.Is(err, lvm.ErrOpen), err
	}
	if err := m.same(c.Disk); err != nil { // what was read was this disk's
		return false, err
	}
	if err := m.tools.createPhysicalVolume(ctx, c.Path, c.PV); err != nil {
		// LVM itself fails while another has the disk open.
		return errors.Is(err, lvm.ErrOpen) || !errors.Is(err, lvm.ErrNotBlank), err
	}
	m.after("make a physical volume")
	return false, nil
}

// same fails unless the device of a disk is still that disk's, and no other is: names in
// /dev are given anew when disks come and go.
func (m *maker) same(d volumegroup.Disk) error {
	now, err := m.tools.disks()
	if err != nil {
		return err
	}
	is, devices := false, 0
	for _, other := range now {
		if other.ID != d.ID {
			continue
		}
		devices++
		is = is || other.Path == d.Path && other.Size == d.Size
	}
	if devices > 1 {
		return fmt.Errorf("%d devices say by now that they are %s; they may be paths to one disk (multipath), which is not taken", devices, d.ID)
	}
	if !is {
		return fmt.Errorf("%s is not disk %s any more; it is looked at again", d.Path, d.ID)
	}
	return nil
}

func (m *maker) stage(id string, s volumegroup.DiskStage) {
	taken := m.ledger.Disks[id]
	taken.Stage = s
	m.ledger.Disks[id] = taken
}

// pool makes the thin pool that is declared, once.
func (m *maker) pool(ctx context.Context, d volumegroup.Decision) error {
	if !d.MakePool {
		return nil
	}
	p := lvm.NewThinPool{Group: d.Declaration.Group, Name: d.Declaration.ThinPool, Size: d.Declaration.ThinSize}
	if err := m.tools.makePool(ctx, p); err != nil {
		return fmt.Errorf("the group is made, its thin pool is not: %w", err)
	}
	m.after("make the thin pool")
	made := m.ledger.Groups[d.Declaration.Name]
	made.PoolMade = true
	m.ledger.Groups[d.Declaration.Name] = made
	return m.record("record the thin pool")
}
