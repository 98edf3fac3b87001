//go:build cluster

package cluster_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/test/s3"
)

const mib = 1 << 20

// library is a namespace with a real S3 server that has a dataset.
type library struct {
	*tenant
	server *s3.Server
	// sums are the checksums of a bucket's objects, by key.
	sums map[string]string
}

// libraryPort counts the servers. Each test has its own, and several run at the same time.
var libraryPort atomic.Int32

// newLibrary starts the server. The namespace has its credentials in the Secret "s3".
func newLibrary(t *testing.T, namespace string) *library {
	t.Helper()
	l := &library{tenant: newTenant(t, namespace)}
	server, err := shared.StartS3(l.ctx, 9100+int(libraryPort.Add(1)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	l.server = server
	require.NoError(t, l.apply(secret("s3", server.Access, server.Secret)))
	return l
}

func secret(name, access, key string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: %s}
stringData: {awsAccessKeyID: %q, awsSecretAccessKey: %q}
`, name, access, key)
}

// bucket creates a bucket with objects of these sizes in bytes.
func (l *library) bucket(name string, sizes ...int) {
	l.t.Helper()
	require.NoError(l.t, l.server.MakeBucket(l.ctx, name, false))
	random := rand.NewChaCha8([32]byte{1})
	l.sums = map[string]string{}
	for i, size := range sizes {
		body := make([]byte, size)
		_, _ = random.Read(body) // it never fails
		key := fmt.Sprintf("part-%d/object-%02d", i%3, i)
		_, err := l.server.Put(l.ctx, name, key, body, true)
		require.NoError(l.t, err)
		sum := sha256.Sum256(body)
		l.sums[key] = hex.EncodeToString(sum[:])
	}
}

// dataset returns a VolumeManager with one volume, "data".
func (l *library) dataset(name, sourceType, bucket string, replicas int, options ...string) string {
	return fmt.Sprintf(`
apiVersion: flexlvm.io/v1
kind: VolumeManager
metadata: {name: %s}
spec:
  volumes:
  - id: data
    sourceType: %s
    sourceURL: s3://%s/
    replicas: %d
    accessMode: ReadWriteOnce
    capacity: 400Mi
    labels: {dataset: %s}
    options:
      awsCredentialsSecretName: s3
      endpointURL: %s
      %s
`, name, sourceType, bucket, replicas, name, l.server.Endpoint, strings.Join(options, "\n      "))
}

func (l *library) get(name string) (vm flexlvmv1.VolumeManager) {
	l.t.Helper()
	l.look(name, &vm)
	return vm
}

// hopeless is how long a failed VolumeManager may stay unchanged before a test gives up on it.
const hopeless = 3 * time.Minute

// until waits until check is satisfied with a VolumeManager. check returns what is missing.
func (l *library) until(name string, check func(flexlvmv1.VolumeManager) string) flexlvmv1.VolumeManager {
	l.t.Helper()
	missing, hope, last := "", time.Now(), flexlvmv1.VolumeManagerStatus{}
	for end := time.Now().Add(patience); time.Now().Before(end) && time.Since(hope) < hopeless; time.Sleep(time.Second) {
		vm := l.get(name)
		if missing = check(vm); missing == "" {
			return vm
		}
		if failed(vm) != "" || vm.Status.ObservedGeneration != vm.Generation || !equality.Semantic.DeepEqual(vm.Status, last) {
			hope, last = time.Now(), vm.Status
		}
	}
	out, _ := shared.Kubectl(l.ctx, "-n", l.namespace, "get", "vm", name, "-o", "yaml")
	require.Fail(l.t, "it did not come about", "%s\n%s", missing, out)
	return flexlvmv1.VolumeManager{}
}

// loaded returns what is missing until every replica of a VolumeManager is complete.
func loaded(vm flexlvmv1.VolumeManager) string {
	if vm.Status.State != flexlvmv1.StateRunning || len(vm.Status.Volumes) != 1 {
		return fmt.Sprintf("its state is %q", vm.Status.State)
	}
	v := vm.Status.Volumes[0]
	if v.ReadyReplicas != v.Replicas || v.Progress == nil || v.Progress.Percent != 100 {
		return fmt.Sprintf("%d of %d are ready: %+v", v.ReadyReplicas, v.Replicas, v.Nodes)
	}
	return ""
}

func failed(vm flexlvmv1.VolumeManager) string {
	if vm.Status.State != flexlvmv1.StateFailed {
		return fmt.Sprintf("its state is %q", vm.Status.State)
	}
	return ""
}

// bearing returns the nodes that are labelled as having a dataset's data.
func (l *library) bearing(vm flexlvmv1.VolumeManager) []string {
	l.t.Helper()
	return l.bearingOf(vm, "data")
}

// bearingOf is bearing for a volume other than "data".
func (l *library) bearingOf(vm flexlvmv1.VolumeManager, id string) []string {
	l.t.Helper()
	label := replica.NodeLabel(replica.Hash(vm.Namespace, string(vm.UID), id))
	var bearing corev1.NodeList
	require.NoError(l.t, apiClient(l.t).List(l.ctx, &bearing, client.HasLabels{label}))
	var names []string
	for _, node := range bearing.Items {
		names = append(names, node.Name)
	}
	return names
}

// onDisk returns the nodes that have a logical volume of a dataset.
func (l *library) onDisk(vm flexlvmv1.VolumeManager) []string {
	l.t.Helper()
	name := replica.VolumeName(replica.Hash(vm.Namespace, string(vm.UID), "data"))
	var nodes []string
	for _, node := range []string{"node1", "node2"} {
		if strings.Contains(onNode(l.ctx, l.t, node, "lvs --noheadings -o lv_name"), string(name)) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// reader starts a pod with a dataset's claim at /data.
func (l *library) reader(name string, vm flexlvmv1.VolumeManager, node string) {
	l.t.Helper()
	source := vm.Status.Volumes[0].VolumeSource
	require.NotNil(l.t, source)
	require.NotNil(l.t, source.PersistentVolumeClaim)
	require.NoError(l.t, l.apply(pod{name: name, claim: source.PersistentVolumeClaim.ClaimName, node: node}.manifest()))
	l.kubectl("wait", "--for=condition=Ready", "pod/"+name, patiently)
}

// findFiles is a line of shell that begins with a dataset's files. A loader's temporary files may disappear meanwhile.
const findFiles = "cd /data && find . -name .flexlvm -prune -o -type f"

// sumFiles is a line of shell that prints the checksums of a dataset's files.
const sumFiles = findFiles + " -exec sha256sum {} +"

// read returns the checksums of the files that a pod reads, by path.
func (l *library) read(pod string) map[string]string {
	l.t.Helper()
	return l.sumsIn(l.exec(pod, sumFiles))
}

// sumsIn parses the output of sumFiles.
func (l *library) sumsIn(said string) map[string]string {
	l.t.Helper()
	sums := map[string]string{}
	for line := range strings.Lines(said) {
		sum, path, found := strings.Cut(strings.TrimSpace(line), "  ./")
		require.True(l.t, found, line)
		sums[path] = sum
	}
	return sums
}
