//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	serverNode = "node2"
	system     = "flexlvm-system"
)

// jobsBed is the shared cluster with the NFS provisioner. The server runs on the second node.
type jobsBed struct {
	*cluster.Cluster
	source         string
	server, export string
	began          time.Time
	wasReady       string // provisionerReady before the server's first outage
}

func newJobsBed(t *testing.T) *jobsBed {
	t.Helper()
	install(t)
	ctx := deadline(t, patience)
	b := &jobsBed{Cluster: shared, began: time.Now()}
	var err error
	b.source, err = vm.SourceDir()
	require.NoError(t, err)
	b.server, b.export, err = b.StartNFS(ctx, serverNode)
	require.NoError(t, err)
	t.Cleanup(func() { b.logs(t) })
	b.onServer(t, `mkdir bait archived-bait && echo precious >bait/file && echo precious >archived-bait/file`)
	b.install(t)
	b.say(t, "the provisioner of NFS is installed")
	return b
}

// logs logs the jobs' objects if a test failed.
func (b *jobsBed) logs(t *testing.T) {
	if !t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	out, err := b.Kubectl(ctx, "-n", "default", "get", "events,pods,pvc,pv", "-o", "wide")
	t.Log(out, err)
	out, err = b.Kubectl(ctx, "-n", system, "logs", "deployment/flexlvm-nfs-provisioner", "--tail=60")
	t.Log(out, err)
}

// install applies the shipped manifests with a shorter timeout for the server, and with the provisioner
// on the other node.
func (b *jobsBed) install(t *testing.T) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "installer")
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(b.source, "installer"))))
	file := filepath.Join(dir, "nfs/kustomization.yaml")
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	changed := strings.NewReplacer("server=nfs.example.org", "server="+b.server, "path=/srv/flexlvm", "path="+b.export).Replace(string(content))
	require.NoError(t, os.WriteFile(file, []byte(changed), 0o644))
	b.kubectl(t, "apply", "-k", filepath.Join(dir, "nfs"))
	t.Cleanup(func() { b.kubectl(t, "delete", "-k", filepath.Join(dir, "nfs")) }) // its class names this server
	b.kubectl(t, "-n", system, "patch", "deployment", "flexlvm-nfs-provisioner", "--type=json", "-p", `[
		{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--io-timeout=10s"},
		{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--lease-duration=5m"},
		{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--lease-renew-deadline=4m"},
		{"op": "add", "path": "/spec/template/spec/nodeSelector/kubernetes.io~1hostname", "value": "node1"}]`)
	b.kubectl(t, "-n", system, "rollout", "status", "deployment/flexlvm-nfs-provisioner", patiently)
	for _, onDelete := range []string{"delete", "retain"} {
		b.apply(t, fmt.Sprintf(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: shared-%[1]s}
provisioner: nfs.flexlvm.io
mountOptions: [nfsvers=4.2, hard, timeo=50, actimeo=1]
parameters: {server: %q, path: %q, onDelete: %[1]s}
`, onDelete, b.server, b.export))
	}
}

// say logs the test's progress.
func (b *jobsBed) say(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("%4.0fs %s", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

func (b *jobsBed) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience+time.Minute)
	defer cancel()
	out, err := b.Kubectl(ctx, args...)
	require.NoError(t, err, out)
	return out
}

func (b *jobsBed) apply(t *testing.T, manifests string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, applyIn(ctx, t, "default", manifests), manifests)
}

// onServer runs a script in the exported directory on the server, which must succeed.
func (b *jobsBed) onServer(t *testing.T, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	out, err := b.Node(ctx, serverNode, "sh", "-c", "set -e\ncd "+b.export+"\n"+script)
	require.NoError(t, err, out)
	return strings.TrimSpace(out)
}

// down makes the server unreachable like a dead machine: packets are dropped without an answer.
func (b *jobsBed) down(t *testing.T) {
	t.Helper()
	b.onServer(t, `nft 'add table inet away; add chain inet away in { type filter hook input priority 0 ; }; add rule inet away in tcp dport 2049 drop'`)
	b.say(t, "the server is down")
}

func (b *jobsBed) up(t *testing.T) {
	t.Helper()
	b.onServer(t, `nft delete table inet away`)
	b.say(t, "the server is up")
}

// claim creates a claim of a class and does not wait.
func (b *jobsBed) claim(t *testing.T, name, class string) {
	t.Helper()
	b.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, namespace: default}
spec:
  storageClassName: %s
  accessModes: [ReadWriteMany]
  resources: {requests: {storage: 64Mi}}
`, name, class))
}

// bound waits for a claim's PersistentVolume, and returns its name and that of its directory.
func (b *jobsBed) bound(t *testing.T, claim string) (volume, directory string) {
	t.Helper()
	b.kubectl(t, "wait", "pvc/"+claim, "--for=jsonpath={.status.phase}=Bound", patiently)
	volume = b.kubectl(t, "get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
	return volume, filepath.Base(b.kubectl(t, "get", "pv", volume, "-o", "jsonpath={.spec.nfs.path}"))
}

func (b *jobsBed) deleteClaim(t *testing.T, claim string) {
	t.Helper()
	b.kubectl(t, "delete", "pvc", claim, "--wait=false")
}

func (b *jobsBed) gone(t *testing.T, volume string) {
	t.Helper()
	b.kubectl(t, "wait", "pv/"+volume, "--for=delete", patiently)
}

// said waits for an event of an object.
func (b *jobsBed) said(t *testing.T, object, reason, want string) {
	t.Helper()
	(&tenant{ctx: t.Context(), t: t, namespace: "default"}).told(object, reason, want)
}
