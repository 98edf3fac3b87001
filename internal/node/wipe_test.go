package node

import (
	"fmt"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/luks/lukstest"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A fakeDevice notes what is done to it.
type fakeDevice struct {
	discards bool
	full     error // of each write
	did      []string
}

func (*fakeDevice) Name() string { return "device" }

func (d *fakeDevice) Sync() error {
	d.did = append(d.did, "sync")
	return nil
}

func (d *fakeDevice) wipeSpan(w volume.Wipe, at, length volume.Bytes) (bool, error) {
	d.did = append(d.did, fmt.Sprintf("%s %s+%s", w, at, length))
	if w == volume.WipeZero {
		return d.full == nil, d.full
	}
	return d.discards, nil
}

// The header of an encrypted volume is on the disk no more when the volume is removed, whether or not the disk can
// discard. That a disk cannot discard is logged once.
func TestDiscard(t *testing.T) {
	const size = 40 * volume.MiB
	const header = "zero 0 B+16 MiB"
	all := []string{"discard 0 B+20 MiB", "sync", "discard 20 MiB+20 MiB", "sync"}
	sealed, plain := volume.Tags{Wipe: volume.WipeDiscard, LUKS: lukstest.UUID}, volume.Tags{Wipe: volume.WipeDiscard}
	for name, c := range map[string]struct {
		device fakeDevice
		tags   volume.Tags
		layout volume.Layout
		size   volume.Bytes
		wiped  volume.Bytes
		did    []string
		logs   []string
		err    error
	}{
		"encrypted, discards":         {device: fakeDevice{discards: true}, tags: sealed, did: append([]string{header, "sync"}, all...)},
		"encrypted, does not":         {tags: sealed, did: []string{header, "sync", all[0]}, logs: []string{"cannot discard: what the volume held stays there, encrypted; its header was overwritten"}},
		"encrypted, mirrored":         {device: fakeDevice{discards: true}, tags: sealed, layout: volume.Raid1, wiped: 20 * volume.MiB, did: append([]string{header, "sync"}, all...)},
		"encrypted, wiped in part":    {device: fakeDevice{discards: true}, tags: sealed, wiped: 20 * volume.MiB, did: all[2:]},
		"the store of a snapshot":     {device: fakeDevice{discards: true}, tags: sealed, size: 4 * volume.MiB, did: []string{"zero 0 B+4 MiB", "sync", "discard 0 B+4 MiB", "sync"}},
		"encrypted, the disk fails":   {device: fakeDevice{discards: true, full: unix.EIO}, tags: sealed, did: []string{header}, err: unix.EIO},
		"encrypted, no room":          {device: fakeDevice{discards: true, full: unix.ENOSPC}, tags: sealed, did: []string{header}, err: unix.ENOSPC},
		"thin, its pool is full":      {device: fakeDevice{discards: true, full: unix.ENOSPC}, tags: sealed, layout: volume.Thin, did: append([]string{header}, all...), logs: []string{"is only discarded"}},
		"encrypted, zeroed":           {tags: volume.Tags{Wipe: volume.WipeZero, LUKS: lukstest.UUID}, did: []string{"zero 0 B+20 MiB", "sync", "zero 20 MiB+20 MiB", "sync"}},
		"not encrypted, discards":     {device: fakeDevice{discards: true}, tags: plain, did: all},
		"not encrypted, and does not": {tags: plain, did: all[:1], logs: []string{"use a class with wipe: zero"}},
	} {
		t.Run(name, func(t *testing.T) {
			log, logged := logtest.NewNullLogger()
			log.SetLevel(logrus.DebugLevel)
			e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir(), Log: log}, noPrograms(t))
			require.NoError(t, err)
			e.wipeProgressInterval = 20 * volume.MiB
			lv := lvm.LogicalVolume{Group: "flexlvm", Name: "doomed_data", UUID: "u", Shape: volume.Shape{Layout: c.layout}}
			if c.wiped > 0 {
				require.NoError(t, e.records.write(lv.Group, lv.Name, record{State: volume.Doomed, VolumeUUID: lv.UUID, Wiped: c.wiped}))
			}
			if c.size == 0 {
				c.size = size
			}
			require.ErrorIs(t, e.wipeRest(t.Context(), lv, c.tags, &c.device, c.size), c.err)
			require.Equal(t, c.did, c.device.did)
			require.Len(t, logged.AllEntries(), len(c.logs))
			for i, says := range c.logs {
				require.Contains(t, logged.AllEntries()[i].Message, says)
			}
		})
	}
}
