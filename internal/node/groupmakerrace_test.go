package node

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// once calls do right after the first step of that name.
func (h *fakeHost) once(step string, do func()) {
	h.meanwhile = func(name string) {
		if name == step {
			h.meanwhile = nil
			do()
		}
	}
}

// swap exchanges the names of two disks.
func (h *fakeHost) swap(a, b string) {
	one, two := h.disk(a), h.disk(b)
	one.Path, two.Path = b, a
}

// vgcreate and vgextend turn any device into a physical volume, so they only get devices that, at that
// moment, are physical volumes created here. A disk that an earlier process has begun with is no exception.
func TestDiskThatChangesBeforeItJoins(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(h *fakeHost)
		refused string
		members []string // in the end
	}{
		"names change":      {func(h *fakeHost) { h.swap("/dev/sdb", "/dev/vdx") }, "", []string{"/dev/sdc", "/dev/vdx"}},
		"another PV":        {func(h *fakeHost) { h.disk("/dev/sdb").pv = "by-hand" }, "is not the physical volume", []string{"/dev/sdc"}},
		"cleared":           {func(h *fakeHost) { h.clear("/dev/sdb") }, "is not the physical volume", []string{"/dev/sdc"}},
		"cleared and used":  {func(h *fakeHost) { h.clear("/dev/sdb"); h.disk("/dev/sdb").data = true }, "is not the physical volume", []string{"/dev/sdc"}},
		"copied":            {func(h *fakeHost) { h.disk("/dev/vdx").pv, h.disk("/dev/sdb").pv = h.disk("/dev/sdb").pv, "" }, "is not the physical volume", []string{"/dev/sdc"}},
		"of another group":  {func(h *fakeHost) { h.disk("/dev/sdb").group = "vg-by-hand" }, "in volume group by-hand", []string{"/dev/sdc"}},
		"a second path":     {func(h *fakeHost) { h.plug("/dev/sdz"); h.disk("/dev/sdz").ID = "serial-sdb" }, "2 devices", []string{"/dev/sdc"}},
		"LVM does not tell": {func(h *fakeHost) { h.fails = failOnce("pvs") }, "no luck", []string{"/dev/sdb", "/dev/sdc"}},
	} {
		for _, when := range []string{"first", "begun", "extended"} {
			t.Run(name+", "+when, func(t *testing.T) {
				h := newHost(t, 2)
				h.groups["vg-by-hand"] = volumegroup.PhysicalVolume{Group: "by-hand", GroupUUID: "vg-by-hand"}
				h.plug("/dev/vdx")
				h.disk("/dev/vdx").data = true
				d := declared("/dev/sd[bc]")
				want := c.members
				switch when {
				case "extended":
					h.plug("/dev/sda")
					d.Selectors[0].Path = "/dev/sda"
					h.run(0, d)
					d.Selectors[0].Path, d.Extend = "/dev/sd[bc]", true
					want = append([]string{"/dev/sda"}, want...)
				case "begun":
					h.once("record the physical volumes", func() { panic(killed{}) })
					_, died := h.run(0, d)
					require.True(t, died)
				}
				h.once("record the physical volumes", func() { c.happens(h) })
				out, _ := h.run(0, d)
				if c.refused != "" {
					require.Equal(t, volumegroup.Refused, out[0].State)
					require.Contains(t, out[0].Message, c.refused)
				}
				out, _ = h.run(0, d)
				require.Equal(t, volumegroup.Made, out[0].State, out[0].Message)
				var members []string
				for _, m := range out[0].Members {
					members = append(members, m.Path)
				}
				require.ElementsMatch(t, want, members)
			})
		}
	}
}

func failOnce(program string) func(program, device string) error {
	failed := false
	return func(p, _ string) error {
		if p != program || failed {
			return nil
		}
		failed = true
		return errors.New("no luck")
	}
}

// Data that is written to a disk after it was found to be blank is detected, with or without a signature.
func TestDiskThatIsWrittenToBeforeItIsTaken(t *testing.T) {
	for name, c := range map[string]struct {
		write func(d *fakeDisk)
		says  string
	}{
		"signature": {func(d *fakeDisk) { d.data = true }, "not blank"},
		"raw":       {func(d *fakeDisk) { d.raw = true }, "does not read as zeros"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, 2)
			h.once("record the disks", func() { c.write(h.disk("/dev/sdb")) })
			out, _ := h.run(0, declared("/dev/sd*"))
			require.Len(t, out[0].Refused, 1)
			require.Contains(t, out[0].Refused[0].Reason, c.says)
			require.Equal(t, []string{"/dev/sdc"}, h.touched)
		})
	}
}

// While a disk is read, its name may pass to another disk, whose data has no signature.
func TestDiskThatIsExchangedWhileItIsRead(t *testing.T) {
	h := newHost(t, 1)
	h.plug("/dev/vdx")
	h.disk("/dev/vdx").raw = true
	h.once("record the disks", func() {
		h.once("read /dev/sdb", func() { h.swap("/dev/sdb", "/dev/vdx") })
	})
	out, _ := h.run(0, declared("/dev/sdb"))
	require.Equal(t, volumegroup.Refused, out[0].State)
	require.Contains(t, out[0].Refused[0].Reason, "is not disk serial-sdb any more")
	require.Empty(t, h.touched)
}
