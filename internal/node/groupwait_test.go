package node

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// busy makes a program fail n times because the disk is in use.
func (h *fakeHost) busy(program, disk string, n int) {
	h.fails = func(p, device string) error {
		if p != program || device != disk || n == 0 {
			return nil
		}
		n--
		if p == "pvcreate" {
			return errors.New("cannot open exclusively")
		}
		return fmt.Errorf("device %s: %w: %w: process 7 (lvs) has it open", device, lvm.ErrNotBlank, lvm.ErrOpen)
	}
}

// A disk that is busy for a moment, at any of its checks or when LVM writes to it, becomes a member without
// spec.extend, wherever the process dies meanwhile.
func TestDiskThatIsBusyForAMoment(t *testing.T) {
	for _, at := range []struct {
		program string
		before  int // checks that find it free
	}{{"check", 0}, {"check", 1}, {"pvcreate", 0}} {
		for die := 1; ; die++ {
			h := newHost(t, 2)
			h.busy(at.program, "/dev/sdc", 1)
			if at.before > 0 {
				later, looks := h.fails, 0
				h.fails = func(p, device string) error {
					if p == "check" && device == "/dev/sdc" {
						if looks++; looks <= at.before {
							return nil
						}
					}
					return later(p, device)
				}
			}
			d := declared("/dev/sd*")
			d.ThinPool = "thinpool"
			out, died := h.run(die, d)
			if !died {
				require.Equal(t, volumegroup.Waiting, out[0].State, out[0].Message)
				require.False(t, out[0].Changed)
				require.Contains(t, out[0].Message, "because of disk serial-sdc: ")
				require.Contains(t, out[0].Message, "at 2026-11-28T03:10:00Z the group is created without it")
				require.Empty(t, h.groups)
			}
			for range 2 {
				out, _ = h.run(0, d)
			}
			require.Equal(t, volumegroup.Made, out[0].State, "%v, death %d: %s", at, die, out[0].Message)
			require.Len(t, out[0].Members, 2, "%v, death %d: %v", at, die, out[0].Refused)
			require.Len(t, h.touched, 2)
			require.True(t, h.pools["fast/thinpool"])
			l, err := h.readLedger()
			require.NoError(t, err)
			require.Empty(t, l.WaitingSince)
			if !died {
				break
			}
		}
	}
}

// A disk that stays in use delays the group for maxGroupWait. There is no wait if no other disk can be used,
// and an existing group is extended by the other disks immediately.
func TestDiskThatStaysBusy(t *testing.T) {
	h := newHost(t, 2)
	h.busy("check", "/dev/sdc", -1)
	d := declared("/dev/sd*")
	for range 10 {
		out, _ := h.run(0, d)
		require.Equal(t, volumegroup.Waiting, out[0].State)
		require.Contains(t, out[0].Message, "process 7 (lvs) has it open; free it, or leave it out of spec.disks")
		require.Contains(t, out[0].Message, "at 2026-11-28T03:10:00Z")
		h.now = h.now.Add(time.Minute)
	}
	require.Empty(t, h.touched)
	out, _ := h.run(0, d)
	require.Equal(t, volumegroup.Made, out[0].State, out[0].Message)
	require.Len(t, out[0].Members, 1)
	h.plug("/dev/sdd")
	d.Extend = true
	out, _ = h.run(0, d)
	require.Len(t, out[0].Members, 2)
	require.Equal(t, []string{"/dev/sdb", "/dev/sdd"}, h.touched)

	h, d.Extend = newHost(t, 2), false
	h.busy("check", "/dev/sdc", -1)
	_, _ = h.run(0, d)
	h.now = h.now.Add(-time.Hour) // the clock is set back
	out, _ = h.run(0, d)
	require.Contains(t, out[0].Message, "at 2026-11-28T02:10:00Z")

	h = newHost(t, 1)
	h.busy("check", "/dev/sdb", -1)
	out, _ = h.run(0, d)
	require.Equal(t, volumegroup.Refused, out[0].State)
	require.Contains(t, out[0].Refused[0].Reason, "process 7")
}

// Without spec.extend, a disk that was only recorded when the group was created stays out, because it may
// have been used by others since. A disk that LVM has turned into a physical volume all the same joins.
func TestDiskThatTheGroupWasMadeWithout(t *testing.T) {
	for name, labels := range map[string]bool{"written down": false, "a physical volume": true} {
		t.Run(name, func(t *testing.T) {
			h, d := newHost(t, 2), declared("/dev/sd*")
			h.busy("pvcreate", "/dev/sdc", -1)
			_, _ = h.run(0, d)
			h.now = h.now.Add(maxGroupWait)
			h.fails = func(program, device string) error {
				if program != "pvcreate" || device != "/dev/sdc" {
					return nil
				}
				if labels {
					l, err := h.readLedger()
					require.NoError(t, err)
					h.disk(device).pv = l.Disks["serial-sdc"].PVUUID
				}
				return errors.New("no luck")
			}
			out, _ := h.run(0, d)
			require.Equal(t, volumegroup.Made, out[0].State, out[0].Message)
			require.Len(t, out[0].Members, 1)
			h.fails = nil
			h.plug("/dev/sdd")
			out, _ = h.run(0, d)
			require.Equal(t, labels, len(out[0].Members) == 2)
			require.Equal(t, []string{"/dev/sdb"}, h.touched)
			for _, r := range out[0].Refused {
				require.Contains(t, r.Reason, "was created without it; set spec.extend")
			}
			d.Extend = true
			out, _ = h.run(0, d)
			require.Len(t, out[0].Members, 3)
		})
	}
}

// The start of a wait that has ended, or whose declaration is gone, does not count for a later wait.
func TestWaitThatHasEnded(t *testing.T) {
	h, d := newHost(t, 2), declared("/dev/sd*")
	waits := func() int {
		l, err := h.readLedger()
		require.NoError(t, err)
		return len(l.WaitingSince)
	}
	h.busy("check", "/dev/sdc", -1)
	_, _ = h.run(0, d)
	require.Equal(t, 1, waits())
	h.fails = func(program, _ string) error {
		if program == "vgcreate" {
			return errors.New("no luck")
		}
		return nil
	}
	out, _ := h.run(0, d)
	require.Contains(t, out[0].Message, "no luck")
	require.Zero(t, waits())
	h.now = h.now.Add(time.Hour)
	h.plug("/dev/sdd")
	h.busy("check", "/dev/sdd", -1)
	out, _ = h.run(0, d)
	require.Equal(t, volumegroup.Waiting, out[0].State, out[0].Message)
	require.Contains(t, out[0].Message, "at 2026-11-28T04:10:00Z")
	other := declared("/dev/vd*")
	other.Name, other.Group = "slow", "slow"
	_, _ = h.run(0, other)
	require.Zero(t, waits())
}
