//go:build cluster

package jobs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	serverNode = "node2"
	system     = "flexlvm-system"
	longest    = 4 * time.Minute // for anything to come about; seconds, on a quiet machine
)

// bed is a cluster of two nodes; an NFS server runs on the second.
type bed struct {
	*cluster.Cluster
	source         string
	server, export string
	release        string
	began          time.Time
}

func start(t *testing.T) *bed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute) // cold, all is built
	defer cancel()
	b := &bed{began: time.Now()}
	var err error
	b.source, err = vm.SourceDir()
	require.NoError(t, err)
	b.release, err = cluster.ShippedRelease()
	require.NoError(t, err)
	b.Cluster, err = cluster.StartShipped(ctx, cluster.Config{Name: fmt.Sprintf("jobs-%d", os.Getpid()), Nodes: 2, Log: os.Stderr})
	require.NoError(t, err)
	t.Cleanup(func() { b.stop(t) })
	b.server, b.export, err = b.StartNFS(ctx, serverNode)
	require.NoError(t, err)
	b.onServer(t, `mkdir bait archived-bait && echo precious >bait/file && echo precious >archived-bait/file`)
	b.install(t)
	b.say(t, "the provisioner of NFS is installed")
	return b
}

func (b *bed) stop(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	if t.Failed() {
		out, err := b.Kubectl(ctx, "get", "events,pods,pvc,pv", "-A", "-o", "wide")
		t.Log(out, err)
		out, err = b.Kubectl(ctx, "-n", system, "logs", "deployment/flexlvm-nfs-provisioner", "--tail=60")
		t.Log(out, err)
		kept, err := b.KeepLogs()
		t.Log("all logs are kept in", kept, err)
	}
	require.NoError(t, b.Stop(ctx))
}

// install applies what ships. The server gets less time than it should have, and the
// provisioner runs on the other node.
func (b *bed) install(t *testing.T) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "installer")
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(b.source, "installer"))))
	file := filepath.Join(dir, "nfs/kustomization.yaml")
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	changed := strings.NewReplacer("server=nfs.example.org", "server="+b.server, "path=/srv/flexlvm", "path="+b.export).Replace(string(content))
	require.NoError(t, os.WriteFile(file, []byte(changed), 0o644))
	b.kubectl(t, "apply", "-f", filepath.Join(dir, "base/namespace.yaml"))
	b.kubectl(t, "apply", "-k", filepath.Join(dir, "nfs"))
	b.kubectl(t, "-n", system, "patch", "deployment", "flexlvm-nfs-provisioner", "--type=json", "-p", `[
		{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--io-timeout=10s"},
		{"op": "add", "path": "/spec/template/spec/nodeSelector/kubernetes.io~1hostname", "value": "node1"}]`)
	b.kubectl(t, "-n", system, "rollout", "status", "deployment/flexlvm-nfs-provisioner", "--timeout=240s")
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

// say prints how far the test is.
func (b *bed) say(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("%4.0fs %s", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

func (b *bed) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute)
	defer cancel()
	out, err := b.Kubectl(ctx, args...)
	require.NoError(t, err, out)
	return out
}

func (b *bed) apply(t *testing.T, manifests string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	out, err := b.KubectlInput(ctx, strings.NewReader(manifests), "apply", "-f", "-")
	require.NoError(t, err, out+manifests)
}

// onServer runs a script in the exported directory, on the server; it must succeed.
func (b *bed) onServer(t *testing.T, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), longest)
	defer cancel()
	out, err := b.Node(ctx, serverNode, "sh", "-c", "set -e\ncd "+b.export+"\n"+script)
	require.NoError(t, err, out)
	return strings.TrimSpace(out)
}

// down takes the server away as a dead machine is: nothing comes back.
func (b *bed) down(t *testing.T) {
	t.Helper()
	b.onServer(t, `nft 'add table inet away; add chain inet away in { type filter hook input priority 0 ; }; add rule inet away in tcp dport 2049 drop'`)
	b.say(t, "the server is down")
}

func (b *bed) up(t *testing.T) {
	t.Helper()
	b.onServer(t, `nft delete table inet away`)
	b.say(t, "the server is up")
}

// claim makes a claim of a class; it does not wait.
func (b *bed) claim(t *testing.T, name, class string) {
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

// bound waits for a claim's PersistentVolume, and gives its name and the name of its
// directory.
func (b *bed) bound(t *testing.T, claim string) (volume, directory string) {
	t.Helper()
	b.kubectl(t, "wait", "pvc/"+claim, "--for=jsonpath={.status.phase}=Bound", "--timeout=240s")
	volume = b.kubectl(t, "get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
	return volume, filepath.Base(b.kubectl(t, "get", "pv", volume, "-o", "jsonpath={.spec.nfs.path}"))
}

func (b *bed) deleteClaim(t *testing.T, claim string) {
	t.Helper()
	b.kubectl(t, "delete", "pvc", claim, "--wait=false")
}

func (b *bed) gone(t *testing.T, volume string) {
	t.Helper()
	b.kubectl(t, "wait", "pv/"+volume, "--for=delete", "--timeout=240s")
}

// said waits for an event on an object.
func (b *bed) said(t *testing.T, object, reason, want string) {
	t.Helper()
	await.Until(t, longest, func() string {
		heard := b.kubectl(t, "get", "events", "--field-selector", "involvedObject.name="+object, "-o", `jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
		for line := range strings.Lines(heard) {
			if strings.HasPrefix(line, reason+": ") && strings.Contains(line, want) {
				return ""
			}
		}
		return fmt.Sprintf("nobody said %s %q of %s: %s", reason, want, object, heard)
	})
}
