package recipe

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func configFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resource.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestConfig(t *testing.T) {
	all := configFile(t, `
# as in a configuration of Twister2
persistent.volume.per.worker: 0.5
kubernetes.persistent.storage.class: "twister2-nfs-storage"
kubernetes.storage.access.mode: ReadWriteOnce
`)
	s := Settings{Name: "count", Class: "flexlvm-nfs", AccessMode: corev1.ReadWriteMany, SizePerWorker: resource.MustParse("1Gi")}
	require.NoError(t, s.ReadConfig(all))
	require.Equal(t, "512Mi", s.SizePerWorker.String())
	require.Equal(t, "twister2-nfs-storage", s.Class)
	require.Equal(t, corev1.ReadWriteOnce, s.AccessMode)
	require.Equal(t, "count", s.Name)

	s = Settings{Class: "mine", SizePerWorker: resource.MustParse("3Gi")}
	require.NoError(t, s.ReadConfig(all, ConfigClass, ConfigSize))
	require.Equal(t, "mine", s.Class, "what the user says goes before the file")
	require.Equal(t, "3Gi", s.SizePerWorker.String())
	require.Equal(t, corev1.ReadWriteOnce, s.AccessMode)

	for text, want := range map[string]string{
		"persistent.volume.per.worker: 0.0":   "0",
		"persistent.volume.per.worker: 2":     "2Gi",
		`persistent.volume.per.worker: "2"`:   "2Gi",
		"persistent.volume.per.worker: 200Mi": "200Mi",

		"twister2.resource.persistent.volume.per.worker: 3": "3Gi", // as in later releases
	} {
		require.NoError(t, s.ReadConfig(configFile(t, text)))
		require.Equal(t, want, s.SizePerWorker.String(), text)
	}
	for text, says := range map[string]string{
		"persistent.volume.per.worker: -1":                                                   "is not a valid number of GiB",
		"persistent.volume.per.worker: 1e300":                                                "is not a valid number of GiB",
		"persistent.volume.per.worker: much":                                                 "give a number of GiB, or a size such as 10Gi",
		"persistent.volume.per.worker: [1]":                                                  "is neither a number of GiB nor a size",
		"kubernetes.persistent.storage.class: 7":                                             "kubernetes.persistent.storage.class: 7 is not a string",
		"kubernetes.storage.access.mode: {}":                                                 "is not a string",
		"nfs.server.address: 10.0.0.1":                                                       "nfs.server.address cannot be set for a job: the StorageClass determines the server",
		"twister2.resource.nfs.server.path: /srv":                                            "twister2.resource.nfs.server.path cannot be set for a job",
		"persistent.volume.per.worker: 1\ntwister2.resource.persistent.volume.per.worker: 2": "both persistent.volume.per.worker and twister2.resource.",
		"persistent.volume.per.job: 1":                                                       "persistent.volume.per.job is not known; the file may set kubernetes.persistent.storage.class, kubernetes.storage.access.mode, persistent.volume.per.worker",
		"kubernetes.storage.access.mode: a\nkubernetes.storage.access.mode: b":               "already set in map",
	} {
		require.ErrorContains(t, s.ReadConfig(configFile(t, text)), says, text)
	}
	require.ErrorContains(t, s.ReadConfig(filepath.Join(t.TempDir(), "none")), "read --config")
}
