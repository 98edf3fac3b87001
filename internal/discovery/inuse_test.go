package discovery

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/disk"
)

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
