package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// testPods returns the pods of helm test and the StorageClasses of their volumes.
func testPods(t *testing.T, args ...string) map[string]string {
	t.Helper()
	out, err := helm(t, append([]string{"template", "flexlvm", shipped, "--show-only", "templates/tests/volume.yaml"}, args...)...)
	require.NoError(t, err, out)
	pods := map[string]string{}
	for _, document := range strings.Split("\n"+out, "\n---\n") {
		var pod map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(document), &pod))
		if pod == nil {
			continue
		}
		volume := lookup(pod, "spec", "volumes").([]any)[0].(map[string]any)
		pods[lookup(pod, "metadata", "name").(string)], _ = lookup(volume, "ephemeral", "volumeClaimTemplate", "spec", "storageClassName").(string)
	}
	return pods
}

// The pod of helm test meets the restricted Pod Security Standard.
func TestTheTestPodIsRestricted(t *testing.T) {
	out, err := helm(t, "template", "flexlvm", shipped, "--namespace", "other", "--show-only", "templates/tests/volume.yaml")
	require.NoError(t, err, out)
	var pod map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(out), &pod))
	require.Equal(t, "other", lookup(pod, "metadata", "namespace"))
	require.Equal(t, true, lookup(pod, "spec", "securityContext", "runAsNonRoot"))
	require.Equal(t, "RuntimeDefault", lookup(pod, "spec", "securityContext", "seccompProfile", "type"))
	own := container(lookup(pod, "spec").(map[string]any))
	require.Equal(t, false, lookup(own, "securityContext", "allowPrivilegeEscalation"))
	require.Equal(t, []any{"ALL"}, lookup(own, "securityContext", "capabilities", "drop"))
}

// The pod of helm test recognises volumes of every layout, in groups of any name, and no other file systems.
func TestTheTestPodRecognisesVolumes(t *testing.T) {
	out, err := helm(t, "template", "flexlvm", shipped, "--show-only", "templates/tests/volume.yaml")
	require.NoError(t, err, out)
	var pod map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(out), &pod))
	command := container(lookup(pod, "spec").(map[string]any))["command"].([]any)
	require.Len(t, command, 3)
	for line, is := range map[string]bool{
		"411 390 253:3 / /data rw,relatime - xfs /dev/mapper/flexlvm-pvc--0d3f8f6e--6a0d rw,prjquota":                    true,
		"411 390 253:3 / /data rw,relatime - ext4 /dev/mapper/fast--ssd-pvc--0d3f8f6e--6a0d rw":                          true,
		"411 390 253:4 / /data rw,relatime - xfs /dev/mapper/flexlvm-crypt-NWlYrE5uX2 rw":                                true,
		"411 390 253:5 /volumes/pvc-0d3f8f6e-6a0d/data /data rw,relatime - xfs /dev/mapper/fast-directories rw,prjquota": true,
		"411 390 253:0 /var/lib/kubelet/pods/1/volumes/x /data rw,relatime - xfs /dev/mapper/flexlvm-root rw":            false,
		"411 390 253:0 /opt/local-path-provisioner/pvc-0d3f8f6e /data rw,relatime - xfs /dev/mapper/rl-root rw":          false,
		"411 390 253:3 / /other rw,relatime - xfs /dev/mapper/flexlvm-pvc--0d3f8f6e--6a0d rw,prjquota":                   false,
	} {
		dir := t.TempDir()
		mounts := filepath.Join(dir, "mountinfo")
		require.NoError(t, os.WriteFile(mounts, []byte("390 380 0:9 / / rw - overlay overlay rw\n"+line+"\n"), 0o600))
		script := strings.NewReplacer("/data/file", dir+"/file", "df /data", "true", "/proc/self/mountinfo", mounts).Replace(command[2].(string))
		out, err := exec.Command(command[0].(string), command[1].(string), script).CombinedOutput()
		require.Equal(t, is, err == nil, "%s: %s", line, out)
		require.Equal(t, !is, strings.Contains(string(out), "/data is no volume of flexlvm's"), "%s: %s", line, out)
	}
}
