package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// MakeDeclared creates and extends the volume groups that are declared for this node, and returns the outcome
// of each declaration. It calls confirm right before it changes anything for a declaration; if confirm fails,
// it changes nothing.
//
// A disk is recorded before it is touched, with the UUID that its physical volume will get. So, whenever an
// earlier call was killed, a later call knows what that call had begun, and does not mistake a person's
// physical volume for flexlvm's.
func (e *Engine) MakeDeclared(ctx context.Context, all []volumegroup.Declaration, confirm func(context.Context, volumegroup.Declaration) error) ([]volumegroup.Outcome, error) {
	release, err := e.lockDeclared(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	m := groupMaker{tools: hostTools{e}, confirm: confirm, after: e.after, now: e.now, reads: e.diskReads}
	return m.run(ctx, all)
}

// lockDeclared prevents the daemon and `flexlvm vg create --loop` from using disks at the same time.
func (e *Engine) lockDeclared(ctx context.Context) (func(), error) {
	return e.locks.Acquire(ctx, "declared.lock", "declared volume groups")
}

// groupTools is the part of the host that a maker needs.
type groupTools interface {
	readLedger() (volumegroup.Ledger, error)
	writeLedger(volumegroup.Ledger) error
	disks() ([]volumegroup.Disk, error)
	// makeLoop creates and attaches a loop device unless it is attached already.
	makeLoop(ctx context.Context, want volumegroup.Loop) error
	physicalVolumes(ctx context.Context) ([]volumegroup.PhysicalVolume, error)
	checkBlank(ctx context.Context, device string) error
	// createPhysicalVolume checks once more that the device has no signature and no user.
	createPhysicalVolume(ctx context.Context, device, uuid string) error
	// createGroup and extendGroup overwrite devices that are not physical volumes.
	createGroup(ctx context.Context, g volume.Group, tag string, devices []string) (uuid string, err error)
	extendGroup(ctx context.Context, g volume.Group, uuid string, devices []string) error
	// makePool creates a thin pool unless it exists with flexlvm's tags.
	makePool(ctx context.Context, p lvm.NewThinPool) error
}

// A groupMaker carries out what volumegroup.Plan decides.
type groupMaker struct {
	tools   groupTools
	confirm func(context.Context, volumegroup.Declaration) error
	after   func(step string)
	now     func() time.Time
	reads   *disk.Reads
	ledger  volumegroup.Ledger
}

// run must be passed all declarations of the node, because it ends the waits of all others.
func (m *groupMaker) run(ctx context.Context, all []volumegroup.Declaration) ([]volumegroup.Outcome, error) {
	outcomes, err := m.carryOutAll(ctx, all)
	if err != nil {
		return nil, err
	}
	return outcomes, m.endWaits(outcomes)
}

func (m *groupMaker) carryOutAll(ctx context.Context, all []volumegroup.Declaration) ([]volumegroup.Outcome, error) {
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

// plan reads the state of the host, and decides.
func (m *groupMaker) plan(ctx context.Context, view volumegroup.View) (all []volumegroup.Decision, l volumegroup.Ledger, err error) {
	if view.Disks, err = m.tools.disks(); err != nil {
		return nil, l, err
	}
	if view.PVs, err = m.tools.physicalVolumes(ctx); err != nil {
		return nil, l, err
	}
	all, l = volumegroup.Plan(view)
	return all, l, nil
}

// makeLoops creates the declared loop devices that are missing. For each declaration that it tried, it
// returns the reason of a failure, or an empty string.
func (m *groupMaker) makeLoops(ctx context.Context, decisions []volumegroup.Decision) map[string]string {
	out := map[string]string{}
	for _, d := range decisions {
		if !d.NeedsLoop() {
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
	sameDisk := func(a, b volumegroup.DiskRecord) bool { return reflect.DeepEqual(a, b) }
	return maps.Equal(a.Groups, b.Groups) && maps.EqualFunc(a.Disks, b.Disks, sameDisk) && maps.EqualFunc(a.WaitingSince, b.WaitingSince, time.Time.Equal)
}

func (m *groupMaker) record(step string) error {
	if err := m.tools.writeLedger(m.ledger); err != nil {
		return err
	}
	m.after(step)
	return nil
}

// carryOut executes the decision for one declaration. Its error does not prevent other declarations from
// being carried out.
func (m *groupMaker) carryOut(ctx context.Context, d volumegroup.Decision) volumegroup.Outcome {
	m.refuseNonBlank(ctx, &d)
	if d.RefuseRecreation(); d.Problem == "" {
		if err := m.await(&d); err != nil {
			d.Problem = err.Error()
		}
	}
	if d.Problem != "" || len(d.Candidates) == 0 && !d.CreatePool {
		return volumegroup.NewOutcome(d)
	}
	if err := m.confirm(ctx, d.Declaration); err != nil {
		out := volumegroup.NewOutcome(d)
		out.Message = fmt.Sprintf("%s; nothing is changed: %v", out.Message, err)
		return out
	}
	err := m.addDisks(ctx, &d)
	if err == nil && d.GroupUUID != "" {
		err = m.pool(ctx, d)
	}
	out := volumegroup.NewOutcome(d)
	out.Changed = out.State != volumegroup.Waiting // physical volumes alone are not worth an event
	if err != nil {
		out.State, out.Message = volumegroup.Refused, err.Error()
	}
	return out
}

// refuseNonBlank moves the disks that are not blank from d.Candidates to d.Refused.
func (m *groupMaker) refuseNonBlank(ctx context.Context, d *volumegroup.Decision) {
	var blank []volumegroup.Candidate
	for _, c := range d.Candidates {
		if !c.Begun {
			if transient, err := m.checkBlank(ctx, c.Disk); err != nil {
				d.Refused = append(d.Refused, volumegroup.Refusal{Disk: c.Disk, Reason: err.Error(), Transient: transient})
				continue
			}
		}
		blank = append(blank, c)
	}
	d.Candidates = blank
}

// checkBlank fails unless a disk is blank and nobody uses it. It also reports whether the cause of an error may
// pass.
func (m *groupMaker) checkBlank(ctx context.Context, d volumegroup.Disk) (transient bool, err error) {
	err = m.reads.Check(ctx, d.ID, func(ctx context.Context) error { return m.tools.checkBlank(ctx, d.Path) })
	return errors.Is(err, lvm.ErrOpen) || errors.Is(err, disk.ErrNoAnswer) || ctx.Err() != nil, err
}

// addDisks adds the disks in d.Candidates to the group, and creates the group if it does not exist.
func (m *groupMaker) addDisks(ctx context.Context, d *volumegroup.Decision) error {
	if len(d.Candidates) == 0 {
		return nil
	}
	if err := m.recordDisks(d); err != nil {
		return err
	}
	if err := m.createPhysicalVolumes(ctx, d); err != nil {
		return err
	}
	if err := m.await(d); err != nil || len(d.Candidates) == 0 {
		return err
	}
	if d.RefuseRecreation(); d.Problem != "" {
		return errors.New(d.Problem)
	}
	devices, err := m.verifiedPaths(ctx, d)
	if err != nil {
		return err
	}
	if d.GroupUUID == "" {
		d.GroupUUID, err = m.tools.createGroup(ctx, d.Declaration.Group, volumegroup.Tag(d.Declaration.Name), devices)
		d.CreatePool = d.Declaration.ThinPool != ""
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
	delete(m.ledger.WaitingSince, d.Declaration.Name)
	for _, c := range d.Candidates {
		m.stage(c.ID, volumegroup.DiskMember)
		d.Members = append(d.Members, c.Disk)
	}
	return m.record("record the group")
}

// recordDisks records the disks in the ledger before any of them is touched.
func (m *groupMaker) recordDisks(d *volumegroup.Decision) error {
	name := d.Declaration.Name
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.PVUUID == "" {
			uuid, err := lvm.NewPhysicalVolumeUUID()
			if err != nil {
				return err
			}
			c.PVUUID = uuid
		}
		if c.Begun {
			continue
		}
		taken := volumegroup.DiskRecord{Declaration: name, Group: d.Declaration.Group, PVUUID: c.PVUUID, Stage: volumegroup.DiskTaken, ReuseEntries: m.ledger.Disks[c.ID].ReuseEntries}
		if c.ReuseEntry != "" && !slices.Contains(taken.ReuseEntries, c.ReuseEntry) {
			taken.ReuseEntries = append(taken.ReuseEntries, c.ReuseEntry)
		}
		m.ledger.Disks[c.ID] = taken
	}
	if d.GroupUUID == "" {
		m.ledger.Groups[name] = volumegroup.GroupRecord{Group: d.Declaration.Group, Lost: d.Lost}
	}
	return m.record("record the disks")
}

// createPhysicalVolumes turns the disks into physical volumes, and records that. A disk for which this fails is
// refused.
func (m *groupMaker) createPhysicalVolumes(ctx context.Context, d *volumegroup.Decision) error {
	var created []volumegroup.Candidate
	for _, c := range d.Candidates {
		if !c.Begun {
			if transient, err := m.createPhysicalVolume(ctx, c); err != nil {
				d.Refused = append(d.Refused, volumegroup.Refusal{Disk: c.Disk, Reason: err.Error(), Transient: transient})
				continue
			}
		}
		m.stage(c.ID, volumegroup.DiskLabelled)
		created = append(created, c)
	}
	d.Candidates = created
	return m.record("record the physical volumes")
}

// verifiedPaths returns the current paths of the disks. It fails unless each disk still holds the physical
// volume that was created for it here, in no group: vgcreate and vgextend would silently turn other devices
// into physical volumes, and use anybody's. After an error, no disk may join the group; the next call decides
// again.
func (m *groupMaker) verifiedPaths(ctx context.Context, d *volumegroup.Decision) (devices []string, err error) {
	pvs, err := m.tools.physicalVolumes(ctx)
	if err != nil {
		return nil, err
	}
	for i := range d.Candidates {
		c := &d.Candidates[i]
		at := slices.IndexFunc(pvs, func(pv volumegroup.PhysicalVolume) bool {
			return pv.UUID == c.PVUUID && pv.Disk == c.ID && !pv.Missing
		})
		if at < 0 {
			return nil, fmt.Errorf("disk %s is not the physical volume %s any more, which was made of it here; no disk joins volume group %s before all are checked again", c.ID, c.PVUUID, d.Declaration.Group)
		}
		if group := pvs[at].Group; group != "" {
			return nil, fmt.Errorf("disk %s is in volume group %s by now; no disk joins volume group %s before all are checked again", c.ID, group, d.Declaration.Group)
		}
		c.Path = pvs[at].Path
		if err := m.checkSameDisk(c.Disk); err != nil {
			return nil, err
		}
		devices = append(devices, c.Path)
	}
	return devices, nil
}

// createPhysicalVolume turns a disk into a physical volume. It also reports whether the cause of an error may
// pass.
func (m *groupMaker) createPhysicalVolume(ctx context.Context, c volumegroup.Candidate) (transient bool, err error) {
	if err := m.checkSameDisk(c.Disk); err != nil {
		return false, err
	}
	if transient, err := m.checkBlank(ctx, c.Disk); err != nil { // something may have been written to it since
		return transient, err
	}
	if err := m.checkSameDisk(c.Disk); err != nil { // the check must have read this disk
		return false, err
	}
	if err := m.tools.createPhysicalVolume(ctx, c.Path, c.PVUUID); err != nil {
		// LVM itself fails while another process has the disk open.
		return errors.Is(err, lvm.ErrOpen) || !errors.Is(err, lvm.ErrNotBlank), err
	}
	m.after("make a physical volume")
	return false, nil
}

// checkSameDisk fails unless the device is still that of the disk, and the only one: names in /dev are reused
// when disks come and go.
func (m *groupMaker) checkSameDisk(d volumegroup.Disk) error {
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
		return fmt.Errorf("%d devices now report that they are %s; they may be paths to one disk (multipath), which is not taken", devices, d.ID)
	}
	if !is {
		return fmt.Errorf("%s is not disk %s any more; it is checked again", d.Path, d.ID)
	}
	return nil
}

func (m *groupMaker) stage(id string, s volumegroup.DiskStage) {
	taken := m.ledger.Disks[id]
	taken.Stage = s
	m.ledger.Disks[id] = taken
}

// pool creates the declared thin pool, once.
func (m *groupMaker) pool(ctx context.Context, d volumegroup.Decision) error {
	if !d.CreatePool {
		return nil
	}
	p := lvm.NewThinPool{Group: d.Declaration.Group, Name: d.Declaration.ThinPool, Size: d.Declaration.ThinSize}
	if err := m.tools.makePool(ctx, p); err != nil {
		return fmt.Errorf("the group is created, its thin pool is not: %w", err)
	}
	m.after("make the thin pool")
	made := m.ledger.Groups[d.Declaration.Name]
	made.PoolMade = true
	m.ledger.Groups[d.Declaration.Name] = made
	return m.record("record the thin pool")
}
