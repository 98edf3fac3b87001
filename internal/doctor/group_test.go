package doctor

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestDevicesFile(t *testing.T) {
	const both = `{"report":[{"vg":[{"vg_name":"flexlvm"},{"vg_name":"data"}]}]}`
	const file = "# LVM uses devices listed in this file.\nVERSION=1.1.2\nIDTYPE=devname IDNAME=/dev/vda DEVNAME=/dev/vda PVID=x\n"
	for name, c := range map[string]struct {
		use, seen, all string
		level          Level
		says           string
	}{
		"not used":         {"use_devicesfile=0", both, both, OK, "does not use it"},
		"not known to LVM": {"fails", both, both, OK, "does not use it"},
		"hides nothing":    {"use_devicesfile=1", both, both, OK, "lists 1 device;"},
		"hides ours":       {"use_devicesfile=1", `{"report":[{"vg":[]}]}`, both, Fail, "hides volume group flexlvm"},
		"hides another":    {"use_devicesfile=1", `{"report":[{"vg":[{"vg_name":"flexlvm"}]}]}`, both, Warn, "hides 1 volume group"},
		"vgs fails":        {"use_devicesfile=1", "fails", both, Warn, "went wrong"},
		"vgs speaks prose": {"use_devicesfile=1", "hello", both, Warn, "read LVM's report"},
	} {
		t.Run(name, func(t *testing.T) {
			p := healthy(t)
			p.write(t, devicesFileName, file)
			p.host.Tools = script{
				"lvmconfig": c.use,
				"vgs --reportformat json --options vg_name":                c.seen,
				"vgs --reportformat json --options vg_name --devicesfile ": c.all,
			}
			got := New(p.cfg, p.host).checkDevicesFile(context.Background())
			require.Len(t, got, 1)
			require.Equal(t, c.level, got[0].Level)
			require.Contains(t, got[0].Detail, c.says)
		})
	}
}

// All thin pools of a group share its spare metadata, so it is subtracted once from the space for other volumes.
func TestSpareMetadataIsShared(t *testing.T) {
	p := healthy(t)
	tools := goodTools()
	tools["thin_check -V"] = "0.9.0\n"
	p.host.Tools = tools
	group, one, two := goodGroup(), goodPool(), goodPool()
	group.Size, group.Free = 100*volume.GiB, 512*volume.MiB
	one.Size, one.Metadata = 43*volume.GiB+512*volume.MiB, volume.GiB
	two.Name, two.Size, two.Metadata = "another", one.Size, one.Metadata
	p.host.Inventory = nodeTools{groups: []lvm.VolumeGroup{group}, pools: []lvm.ThinPool{one, two}}
	require.Contains(t, p.examine(), Finding{
		Level: Warn, Check: "group flexlvm", Detail: "512 MiB free of 100 GiB",
		Do: "make room, or add a device with `vgextend --metadatasize 16m flexlvm DEVICE`",
	}, "a twentieth of the 10 GiB beside the pools is free")
}
