package staticconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// files is the class that one without volumeMode is, and devices one with volumeMode Block.
func files(name, directory string) flexlvmv1.DiscoveryClass {
	return flexlvmv1.DiscoveryClass{
		StorageClassName: name, Directory: directory, VolumeMode: "Filesystem", AccessMode: "ReadWriteOnce",
		Directories: "BindMounts", CleanFilesystem: "DeleteFiles", CleanDevice: "Zero",
	}
}

func devices(name, directory string) flexlvmv1.DiscoveryClass {
	out := files(name, directory)
	out.VolumeMode, out.Directories = "Block", ""
	return out
}

// The manifests with the fields and values of the published examples are read, and each of
// their fields is taken over or has a note that names it.
func TestReadOfTheExamples(t *testing.T) {
	every := files("fast-disks", "/mnt/fast-disks")
	every.NamePattern, every.FSType = "*", "ext4"
	every.NodeLabels, every.Labels = []string{"kubernetes.io/hostname"}, flexlvmv1.VolumeLabels{"foo": "bar"}
	bare := []flexlvmv1.DiscoveryClass{devices("local-storage", "/mnt/disks")}
	const cleaner, ofBare = "blockCleanerCommand", "storageClassMap.local-storage.blockCleanerCommand"
	want := map[string]struct {
		classes []flexlvmv1.DiscoveryClass
		notes   []string // how each begins
	}{
		"from-static-every-field":   {[]flexlvmv1.DiscoveryClass{every}, []string{"minResyncPeriod 5m0s", "storageClassMap.fast-disks." + cleaner}},
		"from-static-baremetal":     {bare, []string{ofBare}},
		"from-static-jobs":          {bare, []string{"useJobForCleaning", ofBare}},
		"from-static-resync":        {bare, []string{"minResyncPeriod 1h", ofBare}},
		"from-static-tolerations":   {bare, []string{"jobTolerations", ofBare}},
		"from-static-default-class": {[]flexlvmv1.DiscoveryClass{files("local-storage", "/mnt/disks")}, []string{ofBare}},
		"from-static-gke-raid": {
			[]flexlvmv1.DiscoveryClass{files("nvme-ssd-block", "/mnt/disks/raid")}, []string{"useNodeNameOnly", "storageClassMap.nvme-ssd-block." + cleaner},
		},
		"from-static-eks": {[]flexlvmv1.DiscoveryClass{files("nvme-ssd", "/dev/disk/kubernetes")}, []string{"storageClassMap.nvme-ssd." + cleaner}},
		"from-static-gce": {[]flexlvmv1.DiscoveryClass{
			files("local-nvme", "/mnt/disks/by-uuid/google-local-ssds-nvme-fs"), files("local-scsi", "/mnt/disks/by-uuid/google-local-ssds-scsi-fs"),
		}, []string{"useNodeNameOnly", "storageClassMap.local-nvme." + cleaner, "storageClassMap.local-scsi." + cleaner}},
		"from-static-node-names": {
			[]flexlvmv1.DiscoveryClass{files("local-scsi", "/mnt/disks")}, []string{"useNodeNameOnly", "storageClassMap.local-scsi." + cleaner},
		},
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "from-others", "static-provisioner-config.yaml"))
	require.NoError(t, err)
	for _, document := range strings.Split(string(text), "---\n") {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
		}
		require.NoError(t, yaml.Unmarshal([]byte(document), &object))
		if object.Kind != "ConfigMap" {
			continue
		}
		name := object.Metadata.Name
		require.Contains(t, want, name)
		got, err := Read([]byte(document))
		require.NoError(t, err, name)
		require.Equal(t, want[name].classes, got.Discovery.Spec.Classes, name)
		require.Len(t, got.Notes, len(want[name].notes), "%s: %v", name, got.Notes)
		for i, begins := range want[name].notes {
			require.Truef(t, strings.HasPrefix(got.Notes[i], begins), "%s: %q does not begin with %q", name, got.Notes[i], begins)
		}
		delete(want, name)
	}
	require.Empty(t, want, "and each of them is there")
}
