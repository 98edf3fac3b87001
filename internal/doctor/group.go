package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Free shares of a group, in percent, below which there is a warning, or a failure for noMetadataLeft.
const (
	lowSpace       = 10
	lowMetadata    = 25
	noMetadataLeft = 5
)

// devicesFileName is LVM's list of the devices that it may use, relative to the root directory.
const devicesFileName = "etc/lvm/devices/system.devices"

func (d *Doctor) checkGroup(ctx context.Context) []Finding {
	check := "group " + string(d.cfg.Group)
	groups, err := d.host.Inventory.Groups(ctx)
	if err != nil {
		return fail(check, err.Error(), "check the output of `vgs`")
	}
	for _, g := range groups {
		if g.Name == d.cfg.Group {
			pools, _ := d.host.Inventory.ThinPools(ctx) // checkThinPools reports the error
			return judgeGroup(check, g, pools)
		}
	}
	if len(groups) > 0 {
		names := make([]string, 0, len(groups))
		for _, g := range groups {
			names = append(names, string(g.Name))
		}
		return fail(check, "LVM does not see it; it sees "+strings.Join(names, ", "), missingGroup(d.cfg.Group)+"; or name the group that your StorageClasses use with --group")
	}
	return fail(check, "LVM sees no volume group at all", missingGroup(d.cfg.Group))
}

// missingGroup returns what to do about a group that LVM does not see. If the group existed before, it may only be
// hidden, with its volumes intact.
func missingGroup(group volume.Group) string {
	return fmt.Sprintf("if it was there, bring its disks back (see \"devices file\"); otherwise create it with `flexlvm vg create --name %s DEVICE`", group)
}

// judgeGroup is a pure function.
func judgeGroup(check string, g lvm.VolumeGroup, pools []lvm.ThinPool) []Finding {
	own, spare := g.Size, volume.Bytes(0) // space outside of thin pools, and the spare metadata that they share
	for _, p := range pools {
		if p.GroupUUID == g.UUID {
			own -= p.Takes()
			spare = max(spare, p.Metadata) // LVM keeps the spare as large as the largest metadata
		}
	}
	own -= spare
	all := ok(check, fmt.Sprintf("%s, %s free, %s on %s, UUID %s", g.Size, g.Free, volume.Pluralize(g.Volumes, "volume", "volumes"), volume.Pluralize(g.Devices, "device", "devices"), g.UUID))
	switch {
	case g.Exported:
		all = fail(check, "it is exported, so LVM activates and changes nothing in it", fmt.Sprintf("run `vgimport %s`, unless its disks are to leave this node", g.Name))
	case g.Missing > 0:
		all = fail(check, fmt.Sprintf("%d of %s missing", g.Missing, volume.Pluralize(g.Devices, "device is", "devices are")), "bring the disks back; `pvs` and `vgs -o +devices` show which; a disk that is back and still shown as missing needs `vgextend --restoremissing`, see docs/disk-loss.md#the-disk-is-dead. No volume can be made or grown until then")
	case volume.Percent(own, g.Size) >= lowSpace && volume.Percent(g.Free, own) < lowSpace:
		all = warn(check, fmt.Sprintf("%s free of %s", g.Free, g.Size), fmt.Sprintf("make room, or add a device with `vgextend --metadatasize 16m %s DEVICE`", g.Name))
	}
	if g.Extent > volume.DefaultExtent {
		all = append(all, warn(check+" extents", fmt.Sprintf("extents of %s make every volume take up to that much more than is counted", g.Extent), fmt.Sprintf("use a group with extents of %s", volume.DefaultExtent))...)
	}
	if n := g.DevicesWithoutMetadata(); n > 0 {
		all = append(all, warn(check+" metadata copies", fmt.Sprintf("%d of %s without a copy of LVM's metadata, so a power cut can lose volumes on them that were just created or grown", n, volume.Pluralize(g.Devices, "device is", "devices are")),
			fmt.Sprintf("run `vgchange --vgmetadatacopies all %s`; `pvs -o pv_name,pv_mda_count,pv_mda_used_count` shows which: replace a device that has no metadata area at all", g.Name))...)
	}
	return append(all, judgeMetadata(check+" metadata", g)...)
}

// judgeMetadata checks LVM's metadata area. When it is full, no volume can be created, grown or even removed.
// LVM writes each version of the metadata next to the previous one, so only half of the area is usable.
func judgeMetadata(check string, g lvm.VolumeGroup) []Finding {
	const do = "once 10 % or less is free, the node daemon evicts released volumes for it; if these are not enough, delete claims that nobody needs (never logical volumes by hand), or move to a group with a larger area: LVM cannot enlarge it (`flexlvm vg create --metadata-size`)"
	usable := g.MetadataSize / 2
	left := volume.Percent(g.MetadataFree, usable)
	detail := fmt.Sprintf("%s free of %s usable (%d %%)", g.MetadataFree, usable, left)
	switch {
	case g.MetadataFree <= 0:
		return fail(check, detail+", as LVM 2.02 always reports with lvmetad, so the node daemon evicts nothing for it",
			"if `lvmconfig global/use_lvmetad` is 1, set it to 0 in lvm.conf and stop lvmetad; if the area is really full, first remove a logical volume of another program (never flexlvm's by hand), because LVM may not have room to write even a release; or annotate the PersistentVolumes of claims that nobody needs (`kubectl annotate pv PV "+pv.AnnotationReclaim+"=immediate --overwrite`), and then delete these claims, whose volumes are then removed for ever; or move to a group with a larger area (`flexlvm vg create --metadata-size`)")
	case left < noMetadataLeft:
		return fail(check, detail, do)
	case left < lowMetadata:
		return warn(check, detail, do)
	case g.MetadataSize < lvm.MinMetadataSize:
		return warn(check, fmt.Sprintf("the area has %s, enough for some hundreds of volumes", g.MetadataSize), "if this node is to hold more, make its group with `flexlvm vg create`")
	}
	return ok(check, detail)
}

// checkDevicesFile checks LVM's devices file, which hides every device that it does not list, and with them
// whole groups.
func (d *Doctor) checkDevicesFile(ctx context.Context) []Finding {
	const check = "devices file"
	text, err := os.ReadFile(d.path(devicesFileName))
	if os.IsNotExist(err) {
		return ok(check, "none, so LVM sees all devices")
	}
	if err != nil {
		return warn(check, err.Error(), "run it as root")
	}
	if uses, err := d.setting(ctx, "devices/use_devicesfile"); err != nil || uses != "1" {
		return ok(check, "there is one, and LVM does not use it")
	}
	seen, err := d.groupNames(ctx)
	if err != nil {
		return warn(check, err.Error(), "check the output of `vgs`")
	}
	all, err := d.groupNames(ctx, "--devicesfile", "")
	if err != nil {
		return warn(check, err.Error(), `check the output of "vgs --devicesfile ''"`)
	}
	return judgeDevicesFile(check, d.cfg.Group, seen, all, entries(string(text)))
}

// judgeDevicesFile is a pure function.
func judgeDevicesFile(check string, group volume.Group, seen, all map[string]bool, listed int) []Finding {
	switch {
	case all[string(group)] && !seen[string(group)]:
		return fail(check, fmt.Sprintf("/%s hides volume group %s", devicesFileName, group), fmt.Sprintf("run `vgimportdevices %s`", group))
	case len(all) > len(seen):
		return warn(check, fmt.Sprintf("/%s lists %s and hides %s", devicesFileName, volume.Pluralize(listed, "device", "devices"), volume.Pluralize(len(all)-len(seen), "volume group", "volume groups")), "if one of them is wanted, run `vgimportdevices` for it")
	}
	return ok(check, fmt.Sprintf("in use, lists %s; a disk that is moved here is invisible until `lvmdevices --adddev` or `vgimportdevices` is run", volume.Pluralize(listed, "device", "devices")))
}

// entries counts the devices that a devices file lists.
func entries(text string) int {
	n := 0
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "IDTYPE=") {
			n++
		}
	}
	return n
}

func (d *Doctor) groupNames(ctx context.Context, options ...string) (map[string]bool, error) {
	args := append([]string{"--reportformat", "json", "--options", "vg_name"}, options...)
	out, err := d.host.Tools.CommandContext(ctx, "vgs", args...).Output()
	if err != nil {
		return nil, err
	}
	var report struct {
		Report []struct {
			VG []struct {
				Name string `json:"vg_name"`
			} `json:"vg"`
		} `json:"report"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return nil, fmt.Errorf("read LVM's report: %w", err)
	}
	names := map[string]bool{}
	for _, r := range report.Report {
		for _, g := range r.VG {
			names[g.Name] = true
		}
	}
	return names, nil
}
