//go:build cluster

package gc_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

// staticPod is a pod that uses an existing file system and an existing disk, and writes to both.
const staticPod = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: fs, namespace: static}
spec: {storageClassName: fast-disks, accessModes: [ReadWriteOnce], resources: {requests: {storage: 100Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: raw, namespace: static}
spec: {storageClassName: raw-disks, volumeMode: Block, accessModes: [ReadWriteOnce], resources: {requests: {storage: 100Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: static}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
    - name: main
      image: busybox:1.36
      command: [sh, -ec, 'if [ -e /data/secret ] || ! head -c 8192 /dev/raw | cmp -n 8192 - /dev/zero; then exit 1; fi; echo secret >/data/secret; echo secret >/dev/raw; sync; ` + cluster.Sleep + `']
      volumeMounts: [{name: fs, mountPath: /data}]
      volumeDevices: [{name: raw, devicePath: /dev/raw}]
  volumes:
    - {name: fs, persistentVolumeClaim: {claimName: fs}}
    - {name: raw, persistentVolumeClaim: {claimName: raw}}
`

// discovered waits until the node's report of a path matches, and returns it.
func (b *bed) discovered(t *testing.T, path string, fits func(v1.Discovered) bool) (out v1.Discovered) {
	t.Helper()
	await.Until(t, longest, func() string {
		all := b.storage(t).Discovered
		for _, d := range all {
			if d.Path == path && fits(d) {
				out = d
				return ""
			}
		}
		return fmt.Sprintf("of %s the node says %+v", path, all)
	})
	return out
}

func inState(state v1.DiscoveredState) func(v1.Discovered) bool {
	return func(d v1.Discovered) bool { return d.State == state }
}

// testDiscovered: a mounted file system and a linked disk become PersistentVolumes of the example's
// classes. A pod uses both. Its claims are deleted, and the file system is not cleaned while a person
// has it mounted. Then both are cleaned, and the next claims bind to them.
func (b *bed) testDiscovered(t *testing.T) {
	const fs, raw, plain = "/mnt/disks/fast/one", "/mnt/disks/raw/two", "/mnt/disks/fast/plain"
	b.onNode(t, `set -e; for f in /sys/block/*/serial; do case $(cat $f) in blank-1) one=$(basename $(dirname $f));; blank-2) two=$(basename $(dirname $f));; esac; done
		mkdir -p `+fs+` `+plain+` /mnt/disks/raw /mnt/person; mkfs.xfs -qf /dev/$one; mount /dev/$one `+fs+`; ln -s /dev/$two `+raw)
	source, err := vm.SourceDir()
	require.NoError(t, err)
	b.kubectl(t, "apply", "-f", filepath.Join(source, "examples/static.yaml"))
	b.kubectl(t, "create", "namespace", "static")
	b.kubectl(t, "-n", "static", "wait", "--for=create", "serviceaccount/default", "--timeout=4m")
	provided := b.discovered(t, fs, inState(v1.DiscoveredProvided))
	require.True(t, strings.HasPrefix(provided.Disk, "fs-"), provided.Disk)
	require.Equal(t, "serial-blank-2", b.discovered(t, raw, inState(v1.DiscoveredProvided)).Disk)
	require.Contains(t, b.discovered(t, plain, inState(v1.DiscoveredRefused)).Message, "plain directory")
	b.say(t, "both have a PersistentVolume")

	run := func(pod string) {
		b.apply(t, fmt.Sprintf(staticPod, pod))
		await.Until(t, longest, func() string {
			p, err := b.client.CoreV1().Pods("static").Get(t.Context(), pod, metav1.GetOptions{})
			require.NoError(t, err)
			require.NotEqual(t, corev1.PodFailed, p.Status.Phase)
			return await.Missing(p.Status.Phase == corev1.PodRunning, "pod %s is %s", pod, p.Status.Phase)
		})
		await.Until(t, longest, func() string {
			return await.Missing(strings.TrimSpace(b.onNode(t, "cat "+fs+"/secret 2>/dev/null || :")) == "secret", "the pod has not written")
		})
	}
	release := func(pod string) { b.kubectl(t, "-n", "static", "delete", "pod/"+pod, "pvc/fs", "pvc/raw") }
	run("first")
	before := b.discovered(t, fs, inState(v1.DiscoveredProvided)).PersistentVolumeUID
	b.say(t, "a pod has both")
	b.onNode(t, "mount --bind "+fs+" /mnt/person")
	release("first")
	b.discovered(t, fs, func(d v1.Discovered) bool {
		return d.State == v1.DiscoveredCleaning && strings.Contains(d.Message, "/mnt/person")
	})
	require.Equal(t, "secret", strings.TrimSpace(b.onNode(t, "cat /mnt/person/secret")))
	b.onNode(t, "umount /mnt/person")
	b.discovered(t, fs, func(d v1.Discovered) bool {
		return d.State == v1.DiscoveredProvided && d.PersistentVolumeUID != before
	})
	b.say(t, "cleaned, once nobody looks at it")
	require.Empty(t, b.onNode(t, "ls -A "+fs))
	run("second") // it checks that nothing is left on the disk
	b.say(t, "another pod has both")
	b.event(t, "default", "Node", node, "DiskCleaned", fs)

	b.kubectl(t, "delete", "-f", filepath.Join(source, "examples/static.yaml"))
	release("second")
	b.discovered(t, fs, inState(v1.DiscoveredKept))
	require.Equal(t, "secret", strings.TrimSpace(b.onNode(t, "cat "+fs+"/secret")))
	b.say(t, "kept, since nobody asks for it any more")
	b.kubectl(t, "delete", "pv", "-l", v1.LabelDiscoveredOn)
	b.onNode(t, `set -e; dev=$(findmnt -no SOURCE `+fs+`); umount `+fs+`; for d in $dev $(readlink `+raw+`); do wipefs -qa $d; blkdiscard --zeroout $d; done; rm -r /mnt/disks`)
}
