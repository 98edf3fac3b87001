package staticconfig

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// of makes a ConfigMap with one class, and more.
func of(class string, more ...string) string {
	return "kind: ConfigMap\napiVersion: v1\nmetadata: {name: local-provisioner-config}\ndata:\n  " +
		strings.Join(append(more, "storageClassMap: |\n    fast-disks:\n      "+strings.ReplaceAll(class, "\n", "\n      ")), "\n  ") + "\n"
}

const dirs = "hostDir: /mnt/fast-disks\nmountDir: /mnt/fast-disks"

func TestRead(t *testing.T) {
	got, err := Read([]byte(of(dirs+"/\nblockCleanerCommand: [/scripts/shred.sh, \"2\"]\nvolumeMode: Filesystem\naccessMode: ReadWriteOnce\nfsType: ext4\nnamePattern: \"nvme*\"",
		"nodeLabelsForPV: |\n    - topology.kubernetes.io/zone", "labelsForPV: |\n    tier: fast", `useAlphaAPI: "false"`, `useNodeNameOnly: "true"`, "useJobForCleaning: \"yes\"", `minResyncPeriod: "5m0s"`)))
	require.NoError(t, err)
	require.Equal(t, []flexlvmv1.DiscoveryClass{{
		StorageClassName: "fast-disks", Directory: "/mnt/fast-disks", NamePattern: "nvme*", VolumeMode: "Filesystem", AccessMode: "ReadWriteOnce", FSType: "ext4",
		Directories: "BindMounts", CleanFilesystem: "DeleteFiles", CleanDevice: "Zero", Labels: flexlvmv1.VolumeLabels{"tier": "fast"}, NodeLabels: []string{"topology.kubernetes.io/zone"},
	}}, got.Discovery.Spec.Classes)
	require.Equal(t, "flexlvm", got.Discovery.Name)
	require.Len(t, got.Notes, 4, got.Notes)
	for i, name := range []string{"useJobForCleaning", "useNodeNameOnly", "minResyncPeriod", "blockCleanerCommand"} {
		require.Contains(t, got.Notes[i], name)
	}
}

func TestReadOfOneField(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		check func(c flexlvmv1.DiscoveryClass) string
		want  string
	}{
		"zeros":   {dirs + "\nblockCleanerCommand: [/scripts/dd_zero.sh]", func(c flexlvmv1.DiscoveryClass) string { return c.CleanDevice }, "Zero"},
		"discard": {dirs + "\nblockCleanerCommand: [/scripts/blkdiscard.sh]", func(c flexlvmv1.DiscoveryClass) string { return c.CleanDevice }, "Discard"},
		"default": {dirs, func(c flexlvmv1.DiscoveryClass) string { return c.CleanDevice }, "Zero"},
		"names":   {dirs + "\nnamePattern: \"nvme*,sd*\"", func(c flexlvmv1.DiscoveryClass) string { return c.NamePattern }, "nvme*,sd*"},
		"block":   {dirs + "\nvolumeMode: Block", func(c flexlvmv1.DiscoveryClass) string { return c.VolumeMode + c.Directories }, "Block"},
		"nodes": {dirs + "\nselector: [{matchExpressions: [{key: disks, operator: In, values: [fast]}]}]",
			func(c flexlvmv1.DiscoveryClass) string { return c.NodeSelector.MatchExpressions[0].Values[0] }, "fast"},
	} {
		got, err := Read([]byte(of(c.text)))
		require.NoError(t, err, name)
		require.Equal(t, c.want, c.check(got.Discovery.Spec.Classes[0]), name)
	}
}

// What cannot be done is refused by its name, with its value and what to do; all at once.
func TestReadRefuses(t *testing.T) {
	for says, text := range map[string]string{
		`useAlphaAPI is true`:                           of(dirs, `useAlphaAPI: "true"`),
		`setPVOwnerRef is true`:                         of(dirs, `setPVOwnerRef: "true"`),
		`removeNodeNotReadyTaint is true`:               of(dirs, `removeNodeNotReadyTaint: "true"`),
		`useJobForCleaning is 7; give true or false`:    of(dirs, `useJobForCleaning: "7"`),
		`storageClassMap.fast-disks.hostDir is "/mnt"`:  of("hostDir: /mnt\nmountDir: /mnt"),
		`volumeMode is "Raw"; give Filesystem or Block`: of(dirs + "\nvolumeMode: Raw"),
		`accessMode is "ReadWriteMany"`:                 of(dirs + "\naccessMode: ReadWriteMany"),
		`blockCleanerCommand is "/bin/mine -f"`:         of(dirs + "\nblockCleanerCommand: [/bin/mine, -f]"),
		`selector has 2 terms`:                          of(dirs + "\nselector: [{}, {}]"),
		`selector has matchFields`:                      of(dirs + "\nselector: [{matchFields: [{key: metadata.name, operator: In, values: [a]}]}]"),
		`operator Gt of a`:                              of(dirs + "\nselector: [{matchExpressions: [{key: a, operator: Gt, values: [\"1\"]}]}]"),
		`unknown field "hostdirr"`:                      of(dirs + "\nhostdirr: /x"),
		`kind is "Secret"`:                              "kind: Secret\n",
		`data.storageClassMap is missing`:               "kind: ConfigMap\n",
		"useAlphaAPI is true: node affinity has been a field since Kubernetes 1.10; remove it\nstorageClassMap": of("hostDir: mnt", `useAlphaAPI: "true"`),
	} {
		_, err := Read([]byte(text))
		require.ErrorContains(t, err, says)
	}
}
