//go:build cluster

package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// A second node copies a dataset from the first although its source is empty, and the token is visible
// nowhere. Of another dataset the first node's disk has corrupted a file, which the second node loads
// from the source.
func TestDatasetFromAPeer(t *testing.T) {
	slots.Parallel(t, 105)
	l := newLibrary(t, "peers")
	token := strings.Repeat("0123456789abcdef", 4)
	require.NoError(t, l.apply(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: peers}\nstringData: {token: %s}\n", token)))
	worn := l.beginWorn()
	l.bucket("paper", 40*mib, 1*mib, 100, 1)
	manifest := func(replicas int) string {
		return l.dataset("paper", "S3", "paper", replicas, "peersSecretName: peers")
	}
	require.NoError(t, l.apply(manifest(1)))
	worn.wear()
	vm := l.until("paper", loaded)
	first := l.bearing(vm)
	require.Len(t, first, 1)
	for key := range l.sums {
		require.NoError(t, l.server.Remove(l.ctx, "paper", key))
	}

	require.NoError(t, l.apply(manifest(2)))
	vm = l.until("paper", func(vm flexlvmv1.VolumeManager) string {
		if missing := loaded(vm); missing != "" || len(vm.Status.Volumes[0].Nodes) != 2 {
			return missing + " of two replicas"
		}
		return ""
	})
	require.Equal(t, []string{"node1", "node2"}, l.bearing(vm))
	require.Equal(t, "sha256: 4", vm.Status.Volumes[0].Nodes[1].Checked)
	for _, node := range []string{"node1", "node2"} {
		l.reader("on-"+node, vm, node)
		require.Equal(t, l.sums, l.read("on-"+node), node)
	}
	l.until("paper", func(flexlvmv1.VolumeManager) string { // wait until nothing needs it any longer
		return strings.TrimSpace(l.kubectl("get", "jobs", "-l", "flexlvm.io/role=serve", "-o", "name"))
	})
	require.NotContains(t, l.kubectl("get", "vm,jobs,pods,events", "-o", "yaml"), token)
	require.NotContains(t, l.kubectl("logs", "job/paper-data-1"), token)
	worn.isWhole()
	l.kubectl("delete", "pod/on-node1", "pod/on-node2")
	l.kubectl("delete", "vm", "paper", patiently)
}

// wornDataset is the example of peers with a replica that has a corrupted file.
type wornDataset struct {
	*library
	manifest func(replicas int) string
	node     string // of that replica
}

// beginWorn applies the example with one replica.
func (l *library) beginWorn() *wornDataset {
	l.t.Helper()
	w := &wornDataset{library: l.in(l.t)}
	w.bucket("worn", 40*mib, 2*mib, 100)
	w.manifest = func(replicas int) string {
		return shippedDataset(l.t, "s3-peers.yaml", "replicas: 3", fmt.Sprintf("replicas: %d", replicas),
			"s3://bucket/images/", "s3://worn/", "awsCredentialsSecretName: s3-credentials", "awsCredentialsSecretName: s3\n        endpointURL: "+l.server.Endpoint)
	}
	require.NoError(l.t, w.apply(w.manifest(1)))
	return w
}

// wear changes bytes on the device, as a bad disk does: the file's size and times stay. It then
// requests a second replica.
func (w *wornDataset) wear() {
	w.t.Helper()
	vm := w.until("s3-peers", loaded)
	nodes := w.bearingOf(vm, "images")
	require.Len(w.t, nodes, 1)
	w.node = nodes[0]
	name := replica.VolumeName(replica.Hash(vm.Namespace, string(vm.UID), "images"))
	onNode(w.ctx, w.t, w.node, fmt.Sprintf(`set -e
lv=$(lvs --noheadings -o lv_path -S lv_name=%[1]s | tr -d ' ')
mkdir /mnt/%[1]s && mount -o prjquota "$lv" /mnt/%[1]s
file=$(find /mnt/%[1]s -type f -path '*/part-0/object-00')
touch -r "$file" /tmp/%[1]s
printf 'not what it was' | dd of="$file" bs=1 seek=20000000 conv=notrunc,fsync
touch -r /tmp/%[1]s "$file"
umount /mnt/%[1]s && rmdir /mnt/%[1]s && rm /tmp/%[1]s`, name))
	require.NoError(w.t, w.apply(w.manifest(2)))
}

// isWhole checks that the second replica is correct, and that an event reports that it could not be
// copied.
func (w *wornDataset) isWhole() {
	w.t.Helper()
	vm := w.until("s3-peers", func(vm flexlvmv1.VolumeManager) string {
		if missing := loaded(vm); missing != "" || len(vm.Status.Volumes[0].Nodes) != 2 {
			return missing + " of two replicas"
		}
		return ""
	})
	other := map[string]string{"node1": "node2", "node2": "node1"}[w.node]
	w.reader("worn", vm, other)
	require.Equal(w.t, w.sums, w.read("worn"))
	require.Regexp(w.t, "could not be copied from other replicas, and is loaded from its source: .*part-0/object-00", w.kubectl("get", "events", "--field-selector=reason=PeersFailed"))
	w.kubectl("delete", "pod/worn")
	w.kubectl("delete", "vm", "s3-peers", patiently)
}
