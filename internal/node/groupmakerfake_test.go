package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// A fakeDisk is a disk in memory.
type fakeDisk struct {
	volumegroup.Disk
	data  bool   // written to, with a signature
	raw   bool   // written to, without a signature
	pv    string // UUID of the physical volume on it
	group string // UUID of the group that it is in
	was   bool   // it has been in a group since it was last requested
}

// A fakeHost is a node in memory, whose process can be killed at any step. It checks the invariants whenever
// a disk is touched.
type fakeHost struct {
	t      testing.TB
	reads  *disk.Reads
	all    []*fakeDisk
	groups map[string]volumegroup.PhysicalVolume // name, UUID and tags, by UUID
	pools  map[string]bool                       // group/name
	ledger string                                // as on disk
	uuids  int
	die    int // at which change to kill the process; 0: never
	count  int
	// touched are the disks that became physical volumes, in that order.
	touched []string
	// fails makes a program fail.
	fails func(program, device string) error
	now   time.Time
	// meanwhile runs right after a step.
	meanwhile func(step string)
}

// killed is the panic value that ends a process.
type killed struct{}

func (h *fakeHost) step(name string) {
	if h.meanwhile != nil {
		h.meanwhile(name)
	}
	if h.count++; h.count == h.die {
		panic(killed{})
	}
}

func (h *fakeHost) fail(program, device string) error {
	h.step("before " + program)
	if h.fails == nil {
		return nil
	}
	return h.fails(program, device)
}

func (h *fakeHost) disk(path string) *fakeDisk {
	i := slices.IndexFunc(h.all, func(d *fakeDisk) bool { return d.Path == path })
	require.GreaterOrEqual(h.t, i, 0, path)
	return h.all[i]
}

func (h *fakeHost) readLedger() (l volumegroup.Ledger, err error) {
	if h.ledger == "" {
		return l, nil
	}
	return l, json.Unmarshal([]byte(h.ledger), &l)
}

func (h *fakeHost) writeLedger(l volumegroup.Ledger) error {
	if err := h.fail("write", ""); err != nil {
		return err
	}
	text, err := json.Marshal(l)
	h.ledger = string(text)
	return err
}

func (h *fakeHost) disks() (out []volumegroup.Disk, err error) {
	for _, d := range h.all {
		out = append(out, d.Disk)
	}
	return out, nil
}

// makeLoop adds a disk for each file, once.
func (h *fakeHost) makeLoop(_ context.Context, want volumegroup.Loop) error {
	if err := h.fail("losetup", want.File); err != nil {
		return err
	}
	if !slices.ContainsFunc(h.all, func(d *fakeDisk) bool { return d.Loop == want.File }) {
		h.all = append(h.all, &fakeDisk{Disk: volumegroup.Disk{ID: "loop-" + path.Base(want.File), Path: "/dev/loop0", Size: want.Size, Loop: want.File}})
	}
	h.step("losetup")
	return nil
}

func (h *fakeHost) physicalVolumes(context.Context) (out []volumegroup.PhysicalVolume, err error) {
	if h.fails != nil {
		if err := h.fails("pvs", ""); err != nil {
			return nil, err
		}
	}
	for _, d := range h.all {
		if d.pv == "" {
			continue
		}
		pv := h.groups[d.group]
		pv.UUID, pv.Path, pv.Disk = d.pv, d.Path, d.ID
		out = append(out, pv)
	}
	return out, nil
}

func (h *fakeHost) checkBlank(_ context.Context, device string) error {
	if h.fails != nil {
		if err := h.fails("check", device); err != nil {
			return err
		}
	}
	if h.disk(device).raw {
		return fmt.Errorf("device %s: %w", device, disk.ErrNotZero)
	}
	err := h.checkSignatures(device)
	if h.meanwhile != nil {
		h.meanwhile("read " + device)
	}
	return err
}

func (h *fakeHost) checkSignatures(device string) error {
	if d := h.disk(device); d.data || d.pv != "" {
		return fmt.Errorf("device %s: %w: it carries a signature", device, lvm.ErrNotBlank)
	}
	return nil
}

func (h *fakeHost) createPhysicalVolume(_ context.Context, device, uuid string) error {
	if err := errors.Join(h.fail("pvcreate", device), h.checkSignatures(device)); err != nil {
		return err
	}
	d := h.disk(device)
	l, err := h.readLedger()
	require.NoError(h.t, err)
	require.Equal(h.t, uuid, l.Disks[d.ID].PVUUID, "%s is written down before it is touched", device)
	require.False(h.t, d.was, "%s was in a group, and nobody has asked for it since", device)
	require.NotEmpty(h.t, d.ID)
	require.False(h.t, d.raw, "%s holds what nobody can see by a signature", device)
	h.touched = append(h.touched, device)
	d.pv = uuid
	return nil
}

func (h *fakeHost) createGroup(_ context.Context, g volume.Group, tag string, devices []string) (string, error) {
	if err := h.fail("vgcreate", ""); err != nil {
		return "", err
	}
	for _, other := range h.groups {
		require.NotEqual(h.t, g, other.Group, "LVM refuses a second group of a name")
	}
	h.uuids++
	uuid := fmt.Sprintf("vg-%d", h.uuids)
	h.groups[uuid] = volumegroup.PhysicalVolume{Group: g, GroupUUID: uuid, Tags: []string{tag}}
	h.join(uuid, devices)
	return uuid, nil
}

func (h *fakeHost) extendGroup(_ context.Context, _ volume.Group, uuid string, devices []string) error {
	if err := h.fail("vgextend", ""); err != nil {
		return err
	}
	h.join(uuid, devices)
	return nil
}

func (h *fakeHost) join(uuid string, devices []string) {
	require.Contains(h.t, h.groups, uuid)
	l, err := h.readLedger()
	require.NoError(h.t, err)
	for _, device := range devices {
		d := h.disk(device)
		require.Equal(h.t, l.Disks[d.ID].PVUUID, d.pv, "%s is the physical volume that was made here", device)
		require.Equal(h.t, volumegroup.DiskLabelled, l.Disks[d.ID].Stage)
		require.Empty(h.t, d.group)
		require.False(h.t, d.data)
		d.group, d.was = uuid, true
	}
}

func (h *fakeHost) makePool(_ context.Context, p lvm.NewThinPool) error {
	if err := h.fail("lvcreate", ""); err != nil {
		return err
	}
	h.pools[string(p.Group)+"/"+string(p.Name)] = true
	return nil
}

// newHost returns a host with blank disks /dev/sdb and following.
func newHost(t testing.TB, disks int) *fakeHost {
	h := &fakeHost{t: t, reads: disk.NewReads(time.Minute), now: time.Date(2026, 11, 28, 3, 0, 0, 0, time.UTC), groups: map[string]volumegroup.PhysicalVolume{}, pools: map[string]bool{}}
	for i := range disks {
		h.plug(fmt.Sprintf("/dev/sd%c", 'b'+i))
	}
	return h
}

func (h *fakeHost) plug(path string) {
	h.all = append(h.all, &fakeDisk{Disk: volumegroup.Disk{ID: "serial-" + path[5:], Path: path, Size: volume.TiB}})
}

// run runs a process with the declarations; died reports whether it was killed.
func (h *fakeHost) run(die int, all ...volumegroup.Declaration) (out []volumegroup.Outcome, died bool) {
	h.t.Helper()
	died = h.live(die, func(m *groupMaker) (err error) {
		out, err = m.run(context.Background(), all)
		return err
	})
	return out, died
}

// live runs a process, and reports whether it was killed.
func (h *fakeHost) live(die int, does func(*groupMaker) error) (died bool) {
	h.t.Helper()
	h.die, h.count = die, 0
	defer func() {
		h.die = 0
		switch cause := recover().(type) {
		case nil:
		case killed:
			died = true
		default:
			panic(cause)
		}
	}()
	m := groupMaker{tools: h, reads: h.reads, confirm: func(context.Context, volumegroup.Declaration) error { return nil }, after: h.step, now: func() time.Time { return h.now }}
	require.NoError(h.t, does(&m))
	return false
}
