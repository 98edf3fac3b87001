package discovery

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/lvm"
)

// A disk that belongs to something that is not active is not offered. A released one is cleaned if a tenant has
// encrypted it.
func TestSignatures(t *testing.T) {
	for line, want := range map[string]struct{ offer, clean bool }{
		"0x218,uuid,,LVM2_member":           {false, false},
		"0x1000,uuid,,linux_raid_member":    {false, false},
		"0xff6,uuid,,swap":                  {false, false},
		"0x0,uuid,,crypto_LUKS":             {false, true},
		"0x0,,,ceph_bluestore":              {false, true},
		"0x0,,,DM_integrity":                {false, true},
		"0x0,,,stratis":                     {false, true},
		"0x8,uuid,,vdo":                     {false, true},
		"0x1ffffe00,,,lsi_mega_raid_member": {false, true},
		"0x438,uuid,team_member,ext4":       {true, true},
		"0x0,uuid,swapdata,xfs":             {true, true},
	} {
		run := commandtest.Func(func(...string) (string, error) { return "# offset,uuid,label,type\n" + line + "\n", nil })
		offer, clean := checkSignatures(t.Context(), run, "/dev/x", isPart), checkSignatures(t.Context(), run, "/dev/x", isMember)
		require.Equal(t, want.offer, offer == nil, line)
		require.Equal(t, want.clean, clean == nil, line)
		if offer != nil {
			require.EqualError(t, offer, "it has a signature ("+kindOf(line)+"); if nobody needs that data, "+lvm.ClearAdvice("/dev/x", kindOf(line)))
		}
	}
}

// LVM is queried for a logical volume by its group and name, because it takes /dev/dm-3 for a group.
func TestNotOurs(t *testing.T) {
	for name, tt := range map[string]struct {
		device disk.Device
		ran    string // "" for nothing
		out    string
		err    error
		want   string // "" for no error
	}{
		"a disk":               {device: disk.Device{Path: "/dev/sda", ID: "naa.5000"}},
		"another program's":    {device: disk.Device{Path: "/dev/dm-3", ID: "dm-CRYPT-LUKS2-1", Mapping: "secret"}},
		"a logical volume":     {device: disk.Device{Path: "/dev/dm-3", ID: "dm-LVM-1", Mapping: "ta--nk-data--1"}, ran: "ta-nk/data-1", out: "  backup\n"},
		"one of flexlvm's":     {device: disk.Device{Path: "/dev/dm-3", ID: "dm-LVM-1", Mapping: "tank-pvc--1"}, ran: "tank/pvc-1", out: "  flexlvm,flexlvm.state=ready\n", want: errIsFlexlvm.Error()},
		"a raw block volume":   {device: disk.Device{Path: "/dev/dm-3", ID: "dm-flexlvm-1", Mapping: "flexlvm-block-1"}, want: errIsFlexlvm.Error()},
		"LVM does not answer":  {device: disk.Device{Path: "/dev/dm-3", ID: "dm-LVM-1", Mapping: "tank-a"}, ran: "tank/a", err: errors.New("no"), want: "logical volume tank/a: no"},
		"not a name of LVM's ": {device: disk.Device{Path: "/dev/dm-3", ID: "dm-LVM-1", Mapping: "tank"}, want: `mapping "tank"`},
	} {
		t.Run(name, func(t *testing.T) {
			ran := ""
			err := checkDeviceNotFlexlvm(t.Context(), commandtest.Func(func(argv ...string) (string, error) {
				ran = strings.Join(argv, " ")
				return tt.out, tt.err
			}), tt.device)
			if tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
			if tt.ran != "" {
				tt.ran = "lvs --noheadings --readonly -o lv_tags -- " + tt.ran
			}
			require.Equal(t, tt.ran, ran)
		})
	}
}
