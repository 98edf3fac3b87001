//go:build cluster

package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// projects returns the projects that flexlvm assigned to directories and that have a limit or usage,
// with their hard limits in KiB.
func (b *jobsBed) projects(t *testing.T) string {
	t.Helper()
	return b.onServer(t, fmt.Sprintf(`xfs_quota -x -c 'report -p -n -N -b' %s | awk 'substr($1, 2) + 0 >= 1073741824 { print $1, $4 }'`, b.export))
}

// testEnforcedSize checks that if the server is a node, its daemon enforces the sizes of volumes whose
// class asks for that, from before any pod mounts them until they are deleted or archived.
func (b *jobsBed) testEnforcedSize(t *testing.T) {
	b.apply(t, fmt.Sprintf(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: shared-enforced}
provisioner: nfs.flexlvm.io
mountOptions: [nfsvers=4.2, hard, timeo=50, actimeo=1]
parameters: {server: %q, path: %q, onDelete: delete, enforceSize: "true"}
`, b.server, b.export))
	// The workers check that each has its size and no more.
	b.make(t, "NAME=held", "WORKERS=2", "IMAGE=busybox:1.36", "CLASS=shared-enforced", "SIZE=32Mi", "CMD="+strings.ReplaceAll(alone, "$", "$$"),
		"ARGS=--volume-per-worker --namespace=default --kubeconfig="+b.AdminKubeconfig())
	b.kubectl(t, "wait", "job/held", "--for=condition=Complete", patiently)
	b.say(t, "workers with sizes have ended")
	require.Equal(t, "#1073741824 32768\n#1073741825 32768", b.projects(t))
	b.claim(t, "kept", "shared-enforced")
	volume, directory := b.bound(t, "kept")
	require.Equal(t, "true", b.kubectl(t, "get", "pv", volume, "-o", `jsonpath={.metadata.annotations.nfs\.flexlvm\.io/enforce-size}`))
	b.onServer(t, "echo precious >"+directory+"/file")

	b.kubectl(t, "annotate", "pv", volume, "--overwrite", "nfs.flexlvm.io/on-delete=archive")
	b.deleteClaim(t, "kept")
	b.gone(t, volume)
	b.kubectl(t, "delete", "job", "held")
	await.Until(t, patience, func() string { // XFS still counts deleted files for a moment
		left := b.projects(t)
		return await.Missing(left == "#1073741826 65536", "not what is archived alone is limited, as it was: %s", left)
	})
	b.say(t, "only the archived directory is limited")
	require.Empty(t, b.onServer(t, "ls -d default-held-* || true"))
	require.Equal(t, "precious", b.onServer(t, "cat archived-"+directory+"/file && rm -r archived-"+directory))
	await.Until(t, patience, func() string {
		left := b.projects(t) + b.onServer(t, "ls -A .flexlvm")
		return await.Missing(!strings.Contains(left, "#") && !strings.Contains(left, ".projects"), "the daemon has not lifted the limits: %s", left)
	})

	b.say(t, "no directory is limited")
	b.removesFullDirectory(t)

	// A size that cannot be enforced is not provisioned, and an event of the claim says why.
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

// removesFullDirectory checks that a full directory is removed even though its subdirectories cannot be
// moved up for lack of space.
func (b *jobsBed) removesFullDirectory(t *testing.T) {
	t.Helper()
	b.claim(t, "full", "shared-enforced")
	volume, directory := b.bound(t, "full")
	b.onServer(t, "cd "+directory+`
for i in $(seq 60); do mkdir -p data/$i/x/y; done
for i in $(seq 60); do dd if=/dev/zero of=data/$i/x/y/file bs=1200k count=1 2>/dev/null || true; done
if dd if=/dev/zero of=data/1/x/y/rest bs=4k count=20000 2>/dev/null; then echo "its size is not enforced"; exit 1; fi`)
	b.deleteClaim(t, "full")
	b.gone(t, volume)
	require.Empty(t, b.onServer(t, "ls -d *default-full-* .deleting-default-full-* || true"))
	b.say(t, "a full directory is removed")
}
