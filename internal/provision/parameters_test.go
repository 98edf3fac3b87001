package provision_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const known = "volumeGroup, layout, thinPool, directoryPool, stripes, stripeSizeKiB, mirrors, inodes, fsType, kind, encrypted, overprovisionRatio, trustPods, reclaim, wipe, trim, onNodeLoss, readBps, writeBps, readIops, writeIops, door, " +
	"csi.storage.k8s.io/node-publish-secret-name, csi.storage.k8s.io/node-publish-secret-namespace, " +
	"csi.storage.k8s.io/node-expand-secret-name, csi.storage.k8s.io/node-expand-secret-namespace, csi.storage.k8s.io/fstype"

func TestParseParameters(t *testing.T) {
	defaults := provision.Parameters{
		Spec:    volume.Spec{Group: "flexlvm", Layout: volume.Linear, Kind: volume.Claim},
		Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone, Trim: volume.TrimAuto, OnNodeLoss: volume.OnNodeLossKeep,
	}
	ext4 := defaults
	ext4.FSType = volume.Ext4
	tests := map[string]struct {
		given map[string]string
		want  provision.Parameters
		err   string
	}{
		"none": {want: defaults},
		"all": {
			given: map[string]string{
				"volumeGroup": "fast", "layout": "linear", "inodes": "1000", "reclaim": "immediate", "wipe": "discard", "trim": "daily",
				"onNodeLoss": "release", "readBps": "10Mi", "writeBps": "5000000", "readIops": "1000", "writeIops": "500", "fsType": "xfs", "csi.storage.k8s.io/fstype": "xfs",
			},
			want: provision.Parameters{
				Spec:    volume.Spec{Group: "fast", Layout: volume.Linear, Inodes: 1000, Kind: volume.Claim},
				Reclaim: volume.ReclaimImmediate, Wipe: volume.WipeDiscard, Trim: volume.TrimDaily, OnNodeLoss: volume.OnNodeLossRelease,
				IOLimits: volume.IOLimits{ReadBps: 10 * volume.MiB, WriteBps: 5e6, ReadIOPS: 1000, WriteIOPS: 500},
			},
		},
		"striped": {
			given: map[string]string{"layout": "striped", "stripes": "4", "stripeSizeKiB": "256"},
			want: provision.Parameters{
				Spec:    volume.Spec{Group: "flexlvm", Layout: volume.Striped, Stripes: 4, StripeKiB: 256, Kind: volume.Claim},
				Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone, Trim: volume.TrimAuto, OnNodeLoss: volume.OnNodeLossKeep,
			},
		},
		"raid1": {
			given: map[string]string{"layout": "raid1", "mirrors": "2"},
			want: provision.Parameters{
				Spec:    volume.Spec{Group: "flexlvm", Layout: volume.Raid1, Mirrors: 2, Kind: volume.Claim},
				Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone, Trim: volume.TrimAuto, OnNodeLoss: volume.OnNodeLossKeep,
			},
		},
		"thin": {
			given: map[string]string{"layout": "thin", "thinPool": "pool", "overprovisionRatio": "1.5"},
			want: provision.Parameters{
				Spec:    volume.Spec{Group: "flexlvm", Layout: volume.Thin, ThinPool: "pool", Ratio: 1500, Kind: volume.Claim},
				Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone, Trim: volume.TrimAuto, OnNodeLoss: volume.OnNodeLossKeep,
			},
		},
		"for replicas": {
			given: map[string]string{"kind": "dataset"},
			want: provision.Parameters{
				Spec:    volume.Spec{Group: "flexlvm", Layout: volume.Linear, Kind: volume.Dataset},
				Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone, Trim: volume.TrimAuto, OnNodeLoss: volume.OnNodeLossKeep,
			},
		},
		"for nobody": {given: map[string]string{"kind": "cache"}, err: `kind "cache": is not a kind; it is claim, dataset or snapshot`},
		"numbers of a layout": {
			given: map[string]string{"layout": "striped", "stripes": "1", "stripeSizeKiB": "65"},
			err:   `stripes "1": is less than 2, the fewest devices that a volume can be striped over; use layout "linear"; stripeSizeKiB "65": is not a power of two from 4 to 4096`,
		},
		"too many mirrors": {
			given: map[string]string{"layout": "raid1", "mirrors": "10"},
			err:   `mirrors "10": is more than 9, the most that is supported`,
		},
		"unknown": {
			given: map[string]string{"replicas": "3"},
			err:   `unknown parameter "replicas"; the known ones are ` + known,
		},
		"case matters": {
			given: map[string]string{"volumegroup": "fast", "FSType": "xfs"},
			err:   `unknown parameter "FSType", "volumegroup"; the known ones are ` + known,
		},
		"options that only the provisioner sets": {
			given: map[string]string{"size": "1", "clusterUID": "x", "readOnly": "true", "volume": "x", "volumeGroupUUID": "x"},
			err:   `unknown parameter "clusterUID", "readOnly", "size", "volume", "volumeGroupUUID"; the known ones are ` + known,
		},
		"group is empty": {
			given: map[string]string{"volumeGroup": ""},
			err:   "volumeGroup: is empty; give a name",
		},
		"group is an option": {
			given: map[string]string{"volumeGroup": "--help"},
			err:   `volumeGroup "--help": begins with a hyphen, which LVM would take for an option`,
		},
		"group is a path": {
			given: map[string]string{"volumeGroup": "../etc"},
			err:   `volumeGroup "../etc": holds '/'; a name is made of letters, digits and _ . + -`,
		},
		"thin without a pool": {
			given: map[string]string{"layout": "thin"},
			err:   "thinPool: is required with layout \"thin\"; name the thin pool of the nodes (`flexlvm vg create --thin` makes \"thinpool\")",
		},
		"ratio": {
			given: map[string]string{"layout": "thin", "thinPool": "pool", "overprovisionRatio": "0.5"},
			err:   `overprovisionRatio "0.5": is less than 1: volumes would be promised less than they were asked for; give 1 or more, as 1.5`,
		},
		"ratio of what is not thin": {
			given: map[string]string{"overprovisionRatio": "2"},
			err:   `overprovisionRatio: belongs to layout "thin", and the layout is "linear"; leave it out`,
		},
		"thin pool is a path": {
			given: map[string]string{"layout": "thin", "thinPool": "a/b"},
			err:   `thinPool "a/b": holds '/'; a name is made of letters, digits and _ . + -`,
		},
		"thin and overwritten": {
			given: map[string]string{"layout": "thin", "thinPool": "pool", "wipe": "zero"},
			err:   `wipe "zero": is not supported with layout "thin": it would take room of the pool for all that was never written; use "discard"`,
		},
		"no layout": {
			given: map[string]string{"layout": "raid7"},
			err:   `layout "raid7": is not a layout; it is one of linear, striped, raid1, thin, directory`,
		},
		"belongs to another layout": {
			given: map[string]string{"stripes": "2", "mirrors": "1"},
			err: `stripes: belongs to layout "striped", and the layout is "linear"; leave it out; ` +
				`mirrors: belongs to layout "raid1", and the layout is "linear"; leave it out`,
		},
		"inodes": {
			given: map[string]string{"inodes": "-1"},
			err:   `inodes "-1": is not a whole decimal number greater than 0 (no sign, no unit, no fraction)`,
		},
		"inodes empty": {
			given: map[string]string{"inodes": ""},
			err:   `inodes: is empty; give a whole decimal number greater than 0`,
		},
		"ext4":                        {given: map[string]string{"fsType": "ext4"}, want: ext4},
		"ext4, as CSI classes say it": {given: map[string]string{"csi.storage.k8s.io/fstype": "ext4"}, want: ext4},
		"ext4 twice":                  {given: map[string]string{"csi.storage.k8s.io/fstype": "ext4", "fsType": "ext4"}, want: ext4},
		"two file systems": {
			given: map[string]string{"csi.storage.k8s.io/fstype": "ext4", "fsType": "xfs"},
			err:   `fsType "xfs" and csi.storage.k8s.io/fstype "ext4": name two file systems; leave one of them out`,
		},
		"another file system": {
			given: map[string]string{"fsType": "ext3"},
			err:   `fsType "ext3": is not a file system that flexlvm makes; it is xfs or ext4`,
		},
		"another file system, as CSI classes say it": {
			given: map[string]string{"csi.storage.k8s.io/fstype": "btrfs"},
			err:   `csi.storage.k8s.io/fstype "btrfs": is not a file system that flexlvm makes; it is xfs or ext4`,
		},
		"limits on IO": {
			given: map[string]string{"readBps": "0", "writeBps": "fast", "readIops": "", "writeIops": "1k"},
			err: `readBps "0": is less than 4096 bytes per second, which would stall all I/O; raise it, or leave it out for no limit; ` +
				`writeBps "fast": is not a rate; give bytes per second as a whole number with one of k, M, G, T, Ki, Mi, Gi, Ti or none, such as 10Mi; ` +
				`readIops: is empty; give a whole decimal number greater than 0; ` +
				`writeIops "1k": is not a whole decimal number greater than 0 (no sign, no unit, no fraction)`,
		},
		"all that is wrong at once": {
			given: map[string]string{"reclaim": "never", "wipe": "shred", "trim": "hourly", "onNodeLoss": "cry"},
			err: `reclaim "never": is not known; it is one of lazy, immediate; ` +
				`wipe "shred": is not known; it is one of none, discard, zero; ` +
				`trim "hourly": is not known; it is one of auto, daily, weekly, never; ` +
				`onNodeLoss "cry": is not known; it is one of keep, release`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := provision.ParseParameters(tt.given)
			if tt.err != "" {
				require.EqualError(t, err, tt.err)
				var refusal *controlplane.Refusal
				require.ErrorAs(t, err, &refusal)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

// docs/storageclass.md has a row for each parameter, and for nothing else.
func TestParametersAreDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "storageclass.md"))
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "| parameter | values | default | meaning |\n|---|---|---|---|\n")
	require.True(t, found, "the table of parameters")
	table, _, _ = strings.Cut(table, "\n\n")
	var documented []string
	for row := range strings.Lines(table) {
		names, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for name := range strings.SplitSeq(names, ",") {
			documented = append(documented, strings.Trim(name, " `"))
		}
	}
	require.ElementsMatch(t, strings.Split(known, ", "), documented)
}
