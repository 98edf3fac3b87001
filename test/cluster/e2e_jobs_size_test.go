//go:build cluster

package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// projects are those that flexlvm has given to directories and that are limited or used, with their
// hard limits in KiB.
func (b *jobsBed) projects(t *testing.T) string {
	t.Helper()
	return b.onServer(t, fmt.Sprintf(`xfs_quota -x -c 'report -p -n -N -b' %s | awk 'substr($1, 2) >= 1073741824 { print $1, $4 }'`, b.export))
}

// testEnforcedSize: where the server is a node, its daemon holds volumes to their sizes, whose
// class says so, before any pod has them, and until they are gone or archived.
func (b *jobsBed) testEnforcedSize(t *testing.T) {
	b.apply(t, fmt.Sprintf(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: shared-enforced}
provisioner: nfs.flexlvm.io
mountOptions: [nfsvers=4.2, hard, timeo=50, actimeo=1]
parameters: {server: %q, path: %q, onDelete: delete, enforceSize: "true"}
`, b.server, b.export))
	b.claim(t, "held", "shared-enforced")
	b.claim(t, "kept", "shared-enforced")
	volume, directory := b.bound(t, "held")
	kept, keptDirectory := b.bound(t, "kept")
	require.Equal(t, "true", b.kubectl(t, "get", "pv", volume, "-o", `jsonpath={.metadata.annotations.nfs\.flexlvm\.io/enforce-size}`))
	require.Equal(t, "#1073741824 65536\n#1073741825 65536", b.projects(t))

	b.apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: held, namespace: default}
spec:
  nodeSelector: {kubernetes.io/hostname: node1}
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox:1.36
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "exec sleep 86400"]
    volumeMounts: [{name: held, mountPath: /held}, {name: kept, mountPath: /kept}]
  volumes:
  - {name: held, persistentVolumeClaim: {claimName: held}}
  - {name: kept, persistentVolumeClaim: {claimName: kept}}
`)
	b.kubectl(t, "wait", "pod/held", "--for=condition=Ready", "--timeout=240s")
	require.Equal(t, "65536\n", b.kubectl(t, "exec", "held", "--", "sh", "-c", "df -kP /held | awk 'END { print $2 }'"))
	b.kubectl(t, "exec", "held", "--", "sh", "-c", "mkdir -p /held/deep/er/still && echo small >/held/deep/er/still/file && echo precious >/kept/file")
	out, err := b.Kubectl(t.Context(), "exec", "held", "--", "sh", "-c", "dd if=/dev/zero of=/held/deep/fill bs=1M count=80 conv=fsync")
	require.Error(t, err, out)
	require.Regexp(t, "No space left on device|quota exceeded", err.Error())
	require.Regexp(t, `^6[0-4]$`, b.onServer(t, "du -sm "+directory+" | cut -f1"), "all of its size can be used, and no more")
	b.kubectl(t, "exec", "held", "--", "sh", "-c", "dd if=/dev/zero of=/kept/half bs=1M count=32 conv=fsync") // its neighbour has its own
	b.kubectl(t, "delete", "pod", "held")

	b.kubectl(t, "annotate", "pv", kept, "--overwrite", "nfs.flexlvm.io/on-delete=archive")
	b.deleteClaim(t, "held")
	b.deleteClaim(t, "kept")
	b.gone(t, volume)
	b.gone(t, kept)
	require.Empty(t, b.onServer(t, "ls -d *"+volume+" || true"))
	await.Until(t, patience, func() string {
		left := b.onServer(t, "ls -A .flexlvm")
		return await.Missing(!strings.Contains(left, ".projects"), "the daemon has not lifted the limits: %s", left)
	})
	require.Equal(t, "#1073741825 0", b.projects(t), "what is archived is limited no more, and its project is in use")
	require.Equal(t, "precious", b.onServer(t, "cat archived-"+keptDirectory+"/file && rm -r archived-"+keptDirectory))
	require.Empty(t, b.projects(t))

	// What cannot be held is not offered, and the claim is told why.
	b.apply(t, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: too-large, namespace: default}
spec: {storageClassName: shared-enforced, accessModes: [ReadWriteMany], resources: {requests: {storage: 3Gi}}}
`)
	b.said(t, "too-large", "ProvisioningFailed", "that the export has in all")
	b.kubectl(t, "delete", "pvc", "too-large")
	require.Empty(t, b.onServer(t, "ls -d default-too-large-* || true"))
	b.kubectl(t, "delete", "storageclass", "shared-enforced")
	b.say(t, "volumes are held to their sizes")
}
