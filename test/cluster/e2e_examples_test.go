//go:build cluster

package cluster_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// prefixes are the prefixes of the examples' volumes in the bucket "bucket", by VolumeManager/volume.
var prefixes = map[string]string{
	"s3-replicas/images": "images/", "mixed/images": "images/", "mixed/work": "start/",
	"s3-two/shards": "shards/", "s3-two/labels": "labels/", "s3-every-node/models": "models/",
	"s3-refresh/model": "model/", "s3-refresh/tests": "tests/",
	"s3-displaceable/archive": "archive/", "s3-displacing/today": "today/",
}

// exampleFiles are the files of each prefix. The shards are for two nodes, and readers of labels may
// start with the tenth file.
var exampleFiles = []string{"even-1", "even-2", "odd-1", "odd-2/deep", "odd-3", "even-4", "a", "b", "c", "d", "e"}

// The examples that no other test loads are loaded in parallel: several volumes of one VolumeManager,
// replicas that share the files or are on every node, refreshed and displaceable ones, and shares of an
// NFS server.
func TestExamplesOfDatasets(t *testing.T) {
	slots.Parallel(t, 40)
	l := newLibrary(t, "dataset-examples")
	require.NoError(t, l.apply(secret("s3-credentials", l.server.Access, l.server.Secret)))
	want := l.exampleBucket()
	server, export, err := shared.StartNFS(l.ctx, "node2")
	require.NoError(t, err)
	onNode(l.ctx, t, "node2", "mkdir -p "+export+"/home && printf %s 'in the share' >"+export+"/home/letter")
	want["nfs/home"] = map[string]string{"letter": sumOf("in the share")}
	want["mixed/home"], want["mixed/cache"] = want["nfs/home"], map[string]string{}

	withEndpoint := []string{"awsCredentialsSecretName: s3-credentials", "awsCredentialsSecretName: s3-credentials\n        endpointURL: " + l.server.Endpoint}
	share := []string{"nfs.example.org", server, "path: /exports/home", "path: " + export + "/home"}
	for name, pairs := range map[string][]string{
		"s3-replicas.yaml": {"https://s3.example.org", l.server.Endpoint}, "s3-two-volumes.yaml": withEndpoint, "s3-every-node.yaml": withEndpoint,
		"s3-refresh.yaml": withEndpoint, "s3-displacing.yaml": withEndpoint, "nfs.yaml": share, "mixed.yaml": append(share, withEndpoint...),
	} {
		require.NoError(t, l.apply(shippedDataset(t, name, pairs...)), name)
	}
	claims := map[string]map[string]string{} // by node: claims by volume
	for volume := range want {
		name, id, _ := strings.Cut(volume, "/")
		for _, v := range l.until(name, filled).Status.Volumes {
			if v.ID == id {
				addClaims(t, claims, volume, v)
			}
		}
	}
	require.Len(t, claims, 2)
	l.readersOf(claims)
	got := map[string]map[string]string{}
	for node := range claims {
		for volume, sums := range l.readAll(node) {
			if volume == "s3-two/shards" { // each node has half
				require.Len(t, sums, len(exampleFiles[:6])/2, node)
				maps.Copy(sums, got[volume])
			} else if other, read := got[volume]; read {
				require.Equal(t, other, sums, "%s is the same on both nodes", volume)
			}
			got[volume] = sums
		}
	}
	for volume, sums := range want {
		if len(sums) > 0 {
			require.Equal(t, sums, got[volume], volume)
		}
	}
	require.Empty(t, got["mixed/cache"])
}

// exampleBucket uploads the examples' objects, and returns the checksums of each volume's files.
func (l *library) exampleBucket() map[string]map[string]string {
	l.t.Helper()
	require.NoError(l.t, l.server.MakeBucket(l.ctx, "bucket", false))
	want, put := map[string]map[string]string{}, map[string]bool{}
	for volume, prefix := range prefixes {
		files := exampleFiles
		if prefix == "shards/" {
			files = exampleFiles[:6]
		}
		want[volume] = map[string]string{}
		for _, file := range files {
			text := strings.Repeat(prefix+file, 1000)
			sum := sha256.Sum256([]byte(text))
			want[volume][file] = hex.EncodeToString(sum[:])
			if put[prefix+file] {
				continue
			}
			_, err := l.server.Put(l.ctx, "bucket", prefix+file, []byte(text), true)
			require.NoError(l.t, err)
			put[prefix+file] = true
		}
	}
	return want
}

// filled returns what is missing until all volumes of a VolumeManager are as specified and complete.
func filled(vm flexlvmv1.VolumeManager) string {
	if vm.Status.State != flexlvmv1.StateRunning || len(vm.Status.Volumes) != len(vm.Spec.All()) {
		return fmt.Sprintf("its state is %q", vm.Status.State)
	}
	for _, v := range vm.Status.Volumes {
		if v.Message != flexlvmv1.MessageSuccess || v.ReadyReplicas != v.Replicas || v.Progress != nil && v.Progress.Percent != 100 {
			return fmt.Sprintf("%s: %d of %d are ready: %s %+v", v.ID, v.ReadyReplicas, v.Replicas, v.Message, v.Nodes)
		}
		// A replica is ready for a moment before it is complete, and gets its revision only then.
		if slices.ContainsFunc(v.Nodes, func(r flexlvmv1.ReplicaStatus) bool { return r.State == flexlvmv1.ReplicaLoading }) {
			return fmt.Sprintf("%s: not all are complete: %+v", v.ID, v.Nodes)
		}
	}
	return ""
}

// addClaims adds a volume's claim to the nodes that have a replica, or to node1 if the volume is a
// share.
func addClaims(t *testing.T, claims map[string]map[string]string, volume string, v flexlvmv1.VolumeStatus) {
	t.Helper()
	require.NotNil(t, v.VolumeSource, volume)
	require.NotNil(t, v.VolumeSource.PersistentVolumeClaim, volume)
	nodes := v.Nodes
	if len(nodes) == 0 {
		nodes = []flexlvmv1.ReplicaStatus{{Node: "node1"}}
	}
	for _, replica := range nodes {
		if claims[replica.Node] == nil {
			claims[replica.Node] = map[string]string{}
		}
		claims[replica.Node][volume] = v.VolumeSource.PersistentVolumeClaim.ClaimName
	}
}

// readersOf starts a pod on each node, named after the node, with the node's claims below /data.
func (l *library) readersOf(claims map[string]map[string]string) {
	l.t.Helper()
	var manifests []string
	for node, mounts := range claims {
		var where, what strings.Builder
		for volume, claim := range mounts {
			fmt.Fprintf(&where, "    - {name: %s, mountPath: /data/%s}\n", claim, volume)
			fmt.Fprintf(&what, "  - {name: %[1]s, persistentVolumeClaim: {claimName: %[1]s}}\n", claim)
		}
		manifests = append(manifests, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: %[2]s
    command: [sleep, "86400"]
    volumeMounts:
%[3]s  volumes:
%[4]s`, node, cluster.BusyboxImage, where.String(), what.String()))
	}
	require.NoError(l.t, l.apply(strings.Join(manifests, "\n---\n")))
	for node := range claims {
		l.ready(node)
	}
}

// readAll returns the checksums of the files that a pod of readersOf reads, by volume and path.
func (l *library) readAll(pod string) map[string]map[string]string {
	l.t.Helper()
	all := map[string]map[string]string{}
	for path, sum := range l.read(pod) {
		parts := strings.SplitN(path, "/", 3)
		if strings.Contains(path, "/.flexlvm/") { // the loader's own files
			continue
		}
		volume := parts[0] + "/" + parts[1]
		if all[volume] == nil {
			all[volume] = map[string]string{}
		}
		all[volume][parts[2]] = sum
	}
	return all
}
