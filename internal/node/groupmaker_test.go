package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// declared returns a declaration for the disks that match a path or a pattern.
func declared(pattern string) volumegroup.Declaration {
	return volumegroup.Declaration{Name: "fast", Group: "fast", Selectors: []volumegroup.Selector{{Path: pattern}}}
}

func TestDeclaredGroupIsMadeOfBlankDisks(t *testing.T) {
	h := newHost(t, 3)
	h.disk("/dev/sdc").data = true
	d := declared("/dev/sd*")
	d.ThinPool = "thinpool"
	out, _ := h.run(0, d)
	require.Equal(t, volumegroup.Made, out[0].State, out[0].Message)
	require.True(t, out[0].Changed)
	require.Equal(t, []string{"/dev/sdb", "/dev/sdd"}, h.touched)
	require.Len(t, out[0].Members, 2)
	require.Len(t, out[0].Refused, 1)
	require.Contains(t, out[0].Refused[0].Reason, "signature")
	require.True(t, h.pools["fast/thinpool"])

	out, _ = h.run(0, d)
	require.False(t, out[0].Changed)
	require.Equal(t, volumegroup.Made, out[0].State)
	require.Len(t, out[0].Members, 2)
}

// Wherever the process dies, the next one creates the same group, of the same disks, and touches each disk
// once.
func TestDeclaredGroupKilledAtEveryStep(t *testing.T) {
	for _, extend := range []bool{false, true} {
		for die := 1; ; die++ {
			h := newHost(t, 2)
			d := declared("/dev/sd*")
			d.ThinPool = "thinpool"
			want := []string{"/dev/sdb", "/dev/sdc"}
			if extend {
				h.run(0, d)
				d.Extend = true
				h.plug("/dev/sdd")
				h.plug("/dev/sde")
				want = append(want, "/dev/sdd", "/dev/sde")
			}
			_, died := h.run(die, d)
			if !died {
				require.Greater(t, die, 9, "there were so many changes to die at")
				break
			}
			out, _ := h.run(0, d)
			require.Equal(t, volumegroup.Made, out[0].State, "death %d: %s", die, out[0].Message)
			require.Len(t, out[0].Members, len(want), "death %d: %v", die, out[0].Refused)
			require.ElementsMatch(t, want, h.touched, "death %d", die)
			require.Len(t, h.groups, 1)
			require.True(t, h.pools["fast/thinpool"], "death %d", die)
			out, _ = h.run(0, d)
			require.False(t, out[0].Changed, "death %d", die)
		}
	}
}

// A failed program leaves only its own changes, and is run again.
func TestDeclaredGroupWithFailingPrograms(t *testing.T) {
	for _, program := range []string{"pvcreate", "vgcreate", "lvcreate"} {
		t.Run(program, func(t *testing.T) {
			h := newHost(t, 2)
			d := declared("/dev/sd*")
			d.ThinPool = "thinpool"
			h.fails = func(p, _ string) error {
				if p == program {
					return errors.New("no luck")
				}
				return nil
			}
			out, _ := h.run(0, d)
			require.Equal(t, volumegroup.Refused, out[0].State)
			if program == "pvcreate" {
				require.Contains(t, out[0].Refused[0].Reason, "no luck")
			} else {
				require.Contains(t, out[0].Message, "no luck")
			}
			h.fails = nil
			out, _ = h.run(0, d)
			require.Equal(t, volumegroup.Made, out[0].State, out[0].Message)
			require.Equal(t, []string{"/dev/sdb", "/dev/sdc"}, h.touched)
			require.True(t, h.pools["fast/thinpool"])
		})
	}
}

// Without a writable ledger, no disk is touched.
func TestDeclaredGroupNeedsItsLedger(t *testing.T) {
	h := newHost(t, 1)
	h.fails = func(program, _ string) error {
		if program == "write" {
			return errors.New("disk full")
		}
		return nil
	}
	out, _ := h.run(0, declared("/dev/sdb"))
	require.Equal(t, volumegroup.Refused, out[0].State)
	require.Contains(t, out[0].Message, "disk full")
	require.Empty(t, h.touched)
}

// Nothing is done that the API server does not confirm.
func TestDeclaredGroupIsConfirmed(t *testing.T) {
	h := newHost(t, 1)
	m := groupMaker{tools: h, reads: h.reads, after: h.step, now: func() time.Time { return h.now }, confirm: func(context.Context, volumegroup.Declaration) error { return errors.New("withdrawn") }}
	out, err := m.run(context.Background(), []volumegroup.Declaration{declared("/dev/sdb")})
	require.NoError(t, err)
	require.Contains(t, out[0].Message, "withdrawn")
	require.Empty(t, h.touched)
	require.Empty(t, h.ledger)
}

// A disk that a person has cleared is not used until they request that; each entry of the annotation counts
// once.
func TestClearedDiskIsNotTakenAgain(t *testing.T) {
	h := newHost(t, 1)
	d := declared("/dev/sdb")
	for round := range 3 {
		if round > 0 {
			out, _ := h.run(0, d)
			require.Equal(t, volumegroup.Refused, out[0].State)
			require.Contains(t, out[0].Message, "was created here and is gone")
			d.ReuseDisks = append(d.ReuseDisks, fmt.Sprintf("serial-sdb@%d", round))
			h.disk("/dev/sdb").was = false
		}
		out, _ := h.run(0, d)
		require.Equal(t, volumegroup.Made, out[0].State, out[0].Message)
		h.clear("/dev/sdb")
	}
	require.Len(t, h.touched, 3)
}

// clear does what a person does with vgremove or vgreduce, and wipefs.
func (h *fakeHost) clear(path string) {
	d := h.disk(path)
	uuid := d.group
	d.data, d.raw, d.pv, d.group = false, false, "", ""
	if !slices.ContainsFunc(h.all, func(d *fakeDisk) bool { return d.group == uuid }) {
		delete(h.groups, uuid)
	}
}

// Whatever people do and whenever a process is killed, the invariants of fakeHost hold whenever a disk is
// touched. A process that was not killed changes nothing when it runs again.
func TestDeclaredGroupsAtRandom(t *testing.T) {
	for seed := range int64(30) {
		random := rand.New(rand.NewSource(seed))
		h := newHost(t, 1+random.Intn(4))
		one, two := declared("/dev/sd*"), declared("/dev/sd[ce]")
		two.Name, two.Group = "slow", "slow"
		one.ThinPool = "thinpool"
		asked := 0
		for range 30 {
			d := h.all[random.Intn(len(h.all))]
			switch random.Intn(9) {
			case 0:
				if len(h.all) < 8 {
					h.plug(fmt.Sprintf("/dev/sd%c", 'b'+len(h.all)))
				}
			case 1:
				if d.pv == "" {
					d.data = true
				}
			case 2:
				h.clear(d.Path)
			case 3:
				if d.pv == "" && !d.data { // a person's pvcreate
					h.uuids++
					d.pv = fmt.Sprintf("by-hand-%d", h.uuids)
				}
			case 4:
				one.Extend, two.Extend = random.Intn(2) == 0, random.Intn(2) == 0
			case 5:
				if d.pv == "" && !d.data && d.was {
					asked++
					d.was = false
					one.ReuseDisks = append(one.ReuseDisks, fmt.Sprintf("%s@%d", d.ID, asked))
				}
			}
			all := []volumegroup.Declaration{one, two}[:1+random.Intn(2)]
			if _, died := h.run(random.Intn(14), all...); died {
				continue
			}
			before := len(h.touched)
			out, _ := h.run(0, all...)
			for _, o := range out {
				require.False(t, o.Changed, "seed %d: %+v", seed, o)
			}
			require.Len(t, h.touched, before, "seed %d", seed)
		}
	}
}

func declaredLoop() volumegroup.Declaration {
	return volumegroup.Declaration{Name: "fast", Group: "fast", Loop: &volumegroup.Loop{File: "/srv/a.img", Size: volume.GiB, ForTests: true}}
}

// The loop device and its group are created, wherever the process dies.
func TestDeclaredLoopKilledAtEveryStep(t *testing.T) {
	for die := 1; ; die++ {
		h := newHost(t, 1)
		_, died := h.run(die, declaredLoop())
		if !died {
			require.Greater(t, die, 8, "there were so many changes to die at")
			break
		}
		out, _ := h.run(0, declaredLoop())
		require.Equal(t, volumegroup.Made, out[0].State, "death %d: %s", die, out[0].Message)
		require.Equal(t, []string{"/dev/loop0"}, h.touched)
	}
}

// Without confirmation, or if the file cannot be created, nothing is created.
func TestDeclaredLoopThatIsNotMade(t *testing.T) {
	h := newHost(t, 0)
	d := declaredLoop()
	d.Loop.ForTests = false
	out, _ := h.run(0, d)
	require.Contains(t, out[0].Message, "spec.loop.forTests")

	h.fails = func(program, file string) error {
		if program == "losetup" {
			return fmt.Errorf("%s: flexlvm has not created it", file)
		}
		return nil
	}
	out, _ = h.run(0, declaredLoop())
	require.Equal(t, volumegroup.Refused, out[0].State)
	require.Contains(t, out[0].Message, "/srv/a.img: flexlvm has not created it")
	require.Empty(t, h.all)
}
