//go:build cluster

package cluster_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// datasetClasses use a group that one claim can fill. One is for replicas and one for claims.
const datasetClasses = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: ` + datasetGroup + `}
provisioner: flexlvm.io
volumeBindingMode: WaitForFirstConsumer
parameters: {volumeGroup: ` + datasetGroup + `, kind: dataset, reclaim: immediate, onNodeLoss: release}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: ` + datasetGroup + `-claims}
provisioner: flexlvm.io
volumeBindingMode: WaitForFirstConsumer
parameters: {volumeGroup: ` + datasetGroup + `}
`

// A dataset is loaded on two nodes although a loader is killed, and its progress is visible. A job
// reads it there. If its space is needed, one replica is evicted, and loaded again when there is space.
// Deleting the VolumeManager deletes everything.
func TestDataset(t *testing.T) {
	slots.Parallel(t, 190)
	l := newLibrary(t, "library")
	require.NoError(t, l.apply(datasetClasses))
	t.Cleanup(func() {
		out, err := shared.Kubectl(context.WithoutCancel(l.ctx), "delete", "storageclass", datasetGroup, datasetGroup+"-claims", "--ignore-not-found")
		require.NoError(t, err, out)
	})
	l.bucket("library", slices.Concat([]int{24 * mib}, slices.Repeat([]int{256 << 10}, 40))...)
	require.NoError(t, l.apply(l.dataset("books", "S3", "library", 2, "bandwidth: 1Mi", "evictionPolicy: LRU", "storageClass: "+datasetGroup)))

	vm := l.testProgress("books")
	require.Equal(t, flexlvmv1.MessageRunning, vm.Status.Message)
	require.Equal(t, flexlvmv1.MessageSuccess, vm.Status.Volumes[0].Message)
	require.Equal(t, []string{"node1", "node2"}, l.bearing(vm))
	require.Equal(t, []string{"node1", "node2"}, l.onDisk(vm))
	t.Log(l.kubectl("get", "vm"))

	require.NoError(t, l.apply(trainingJob(vm.Status.Volumes[0].VolumeSource.PersistentVolumeClaim.ClaimName, l.sums)))
	l.kubectl("wait", "--for=condition=Complete", "job/training", patiently)

	l.reader("reader", vm, "node2")
	require.Equal(t, l.sums, l.read("reader"))
	// Refused by the read-only mount or, if the runtime made it writable, by the mount's ID mapping.
	require.Regexp(t, "Read-only file system|Value too large", l.execFails("reader", "touch /data/new"))
	require.Regexp(t, "Read-only file system|Permission denied", l.execFails("reader", "echo >>/data/"+slices.Sorted(maps.Keys(l.sums))[0]))

	t.Run("a replica is evicted", func(t *testing.T) { l.in(t).testReplicaEvicted(vm) })

	// Kubernetes keeps a claim while any pod refers to it, even a finished one.
	l.kubectl("delete", "pod/reader", "job/training")
	l.kubectl("delete", "vm", "books", patiently)
	require.Empty(t, l.bearing(vm))
	require.Empty(t, l.kubectl("get", "pvc,jobs", "-o", "name", "-l", "dataset=books"))
	await.Until(t, patience, func() string {
		left := l.onDisk(vm)
		return await.Missing(len(left) == 0, "logical volumes stay on %v", left)
	})
}

// in returns the library for a subtest.
func (l *library) in(t *testing.T) *library {
	part, n := *l, *l.tenant
	n.t = t
	part.tenant = &n
	return &part
}

// testProgress watches how a dataset is loaded, and kills a running loader.
func (l *library) testProgress(name string) flexlvmv1.VolumeManager {
	l.t.Helper()
	seen := map[int32]bool{}
	killed := ""
	last := int64(0)
	vm := l.until(name, func(vm flexlvmv1.VolumeManager) string {
		missing := loaded(vm)
		if missing == "" || len(vm.Status.Volumes) == 0 || vm.Status.Volumes[0].Progress == nil {
			return missing
		}
		require.Empty(l.t, l.early(vm), "a node carries the label before its replica is complete")
		p := vm.Status.Volumes[0].Progress
		seen[p.Percent] = true
		last = max(last, p.Bytes)
		if killed == "" && p.Percent >= 10 && p.Percent < 70 {
			// Other tests' loaders run, too.
			killed = onNode(l.ctx, l.t, "node1", "pkill -9 -f '^/fetch .*"+vm.Spec.Volumes[0].SourceURL+"' && echo killed || true")
		}
		return missing
	})
	between := slices.DeleteFunc(slices.Sorted(maps.Keys(seen)), func(p int32) bool { return p == 0 || p == 100 })
	l.t.Logf("seen on the way: %v per cent; %s", between, killed)
	require.GreaterOrEqual(l.t, len(between), 3, "progress is seen: %v", seen)
	require.Equal(l.t, "killed\n", killed, "a loader was killed while it was at work")
	return vm
}

// early reports nodes that have the label although no loader has succeeded there.
func (l *library) early(vm flexlvmv1.VolumeManager) string {
	bearing := l.bearing(vm) // before the Jobs, because a Job succeeds before its node is labelled
	var loaders batchv1.JobList
	require.NoError(l.t, apiClient(l.t).List(l.ctx, &loaders, client.InNamespace(l.namespace), client.MatchingLabels{"dataset": vm.Name}))
	succeeded := 0
	for _, loader := range loaders.Items {
		if loader.Status.Succeeded > 0 {
			succeeded++
		}
	}
	return await.Missing(len(bearing) <= succeeded, "%v carry the label, and %d loaders have succeeded", bearing, succeeded)
}

// trainingJob returns a job that may run wherever the data is, and reads all of it.
func trainingJob(claim string, sums map[string]string) string {
	var list strings.Builder
	for _, path := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(&list, "%s  %s\\n", sums[path], path)
	}
	return fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata: {name: training}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: %s
        command: [sh, -c, 'cd /data && printf "$SUMS" | sha256sum -c']
        env: [{name: SUMS, value: %q}]
        volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: %s}}]
`, cluster.BusyboxImage, strings.ReplaceAll(list.String(), `\n`, "\n"), claim)
}

// testReplicaEvicted creates an ordinary claim that needs the space of an unused replica.
func (l *library) testReplicaEvicted(vm flexlvmv1.VolumeManager) {
	l.t.Helper()
	l.kubectl("-n", "flexlvm-system", "rollout", "status", "daemonset/flexlvm-gc", patiently)
	free := l.free("node1")
	require.NoError(l.t, l.apply(claimOf(datasetGroup+"-claims", "large", fmt.Sprint(free)))) // the file system's overhead comes on top
	require.NoError(l.t, l.apply(pod{name: "large", claim: "large", node: "node1"}.manifest()))
	began := time.Now()
	l.ready("large")
	l.t.Logf("the pod that needed the room ran after %.1f s", time.Since(began).Seconds())
	require.Equal(l.t, []string{"node2"}, l.bearing(vm))
	require.Equal(l.t, []string{"node2"}, l.onDisk(vm))
	short := l.until(vm.Name, func(vm flexlvmv1.VolumeManager) string {
		if v := vm.Status.Volumes[0]; v.ReadyReplicas != 1 {
			return fmt.Sprintf("%d replicas are ready", v.ReadyReplicas)
		}
		return ""
	})
	require.Equal(l.t, flexlvmv1.StateRunning, short.Status.State, "one replica serves")
	l.told(vm.Name, "ReplicaEvicted", "was evicted")
	require.Equal(l.t, l.sums, l.read("reader"), "the other replica is not disturbed")

	l.kubectl("delete", "pod", "large")
	l.kubectl("delete", "pvc", "large")
	l.until(vm.Name, loaded)
	require.Equal(l.t, []string{"node1", "node2"}, l.bearing(vm))
}

// free returns the free bytes of the group of datasets on a node.
func (l *library) free(node string) int64 {
	l.t.Helper()
	var free int64
	out := onNode(l.ctx, l.t, node, "vgs --noheadings --nosuffix --units b -o vg_free "+datasetGroup)
	_, err := fmt.Sscan(out, &free)
	require.NoError(l.t, err, out)
	return free
}

// A job starts with the first objects and reads the rest as it arrives. Files appear only when
// complete.
func TestDatasetIsStreamed(t *testing.T) {
	slots.Parallel(t, 180)
	l := newLibrary(t, "stream")
	l.bucket("film", slices.Repeat([]int{1 * mib}, 24)...)
	require.NoError(t, l.apply(l.dataset("film", "S3", "film", 1, "bandwidth: 160Ki", `stream: "true"`, `streamAfter: "2"`)))
	vm := l.until("film", func(vm flexlvmv1.VolumeManager) string {
		// A loader may be slow to report its progress.
		if vm.Status.State != flexlvmv1.StateRunning || vm.Status.Volumes[0].Progress == nil {
			return fmt.Sprintf("its state is %q: %+v", vm.Status.State, vm.Status.Volumes)
		}
		return ""
	})
	require.Less(t, vm.Status.Volumes[0].Progress.Percent, int32(100), "consumers start before all is there")
	l.reader("viewer", vm, "")
	early := l.read("viewer")
	require.NotEmpty(t, early)
	require.Less(t, len(early), len(l.sums), "the viewer began while the rest arrived")
	t.Logf("the viewer began with %d of %d files", len(early), len(l.sums))
	await.Until(t, patience, func() string {
		// Rarely and with one command, because it is work for the node that loads. The files are read
		// after the check for completeness.
		files, complete := strings.CutPrefix(l.exec("viewer", "ls /data/.flexlvm | grep -x complete; "+sumFiles), "complete\n")
		now := l.sumsIn(files)
		for path, sum := range now {
			require.Equal(t, l.sums[path], sum, "%s is whole", path)
		}
		require.True(t, !complete || len(now) == len(l.sums), "of %d files %d are there, and it is said to be complete", len(l.sums), len(now))
		return await.Missing(complete, "%d of %d files are there", len(now), len(l.sums))
	})
	lines := strings.Count(l.exec("viewer", "cat /data/.flexlvm/manifest.jsonl"), "\n")
	require.Equal(t, len(l.sums), lines, "the manifest says what is there")
	l.until("film", loaded)
}

// A job's results are uploaded before its volume is released.
func TestDatasetGivesBackResults(t *testing.T) {
	slots.Parallel(t, 49)
	l := newLibrary(t, "results")
	l.bucket("input", 1*mib, 100)
	require.NoError(t, l.server.MakeBucket(l.ctx, "output", false))
	require.NoError(t, l.apply(l.dataset("work", "S3-Dev", "input", 1, "outputURL: s3://output/run/")))
	vm := l.until("work", loaded)
	l.reader("worker", vm, "")
	require.Equal(t, l.sums, l.read("worker"))
	l.exec("worker", "echo 42 >/data/answer && sync -f /data")
	l.kubectl("delete", "pod", "worker")
	l.kubectl("patch", "vm", "work", "--type=merge", "-p", `{"spec":{"state":"Completed"}}`)
	l.until("work", func(vm flexlvmv1.VolumeManager) string {
		if vm.Status.State != flexlvmv1.StateCompleted {
			return fmt.Sprintf("its state is %q", vm.Status.State)
		}
		return ""
	})
	answer, err := l.server.Get(l.ctx, "output", "run/answer")
	require.NoError(t, err)
	require.Equal(t, "42\n", string(answer))
	for key, want := range l.sums {
		content, err := l.server.Get(l.ctx, "output", "run/"+key)
		require.NoError(t, err)
		sum := sha256.Sum256(content)
		require.Equal(t, want, hex.EncodeToString(sum[:]), key)
	}
	require.Empty(t, l.kubectl("get", "pvc", "-o", "name"))
}

// A running pod's writes are uploaded, even though the mirror is killed meanwhile, and its last writes
// before anything is deleted.
func TestDatasetIsMirrored(t *testing.T) {
	slots.Parallel(t, 81)
	l := newLibrary(t, "mirror")
	l.bucket("ledger", 1*mib, 100)
	require.NoError(t, l.apply(l.dataset("ledger", "S3", "ledger", 1, `resync: "true"`)))
	vm := l.until("ledger", loaded)
	l.reader("writer", vm, "")
	require.Equal(t, l.sums, l.read("writer"))
	first := slices.Sorted(maps.Keys(l.sums))[0]

	l.exec("writer", "echo 1 >/data/new && echo changed >/data/"+first)
	l.uploaded("ledger", map[string]string{"new": "1\n", first: "changed\n"})
	l.until("ledger", func(vm flexlvmv1.VolumeManager) string {
		if lag := vm.Status.Volumes[0].Upload; lag == nil || !lag.Known || lag.Files != 0 {
			return fmt.Sprintf("the status says of the upload: %+v", lag)
		}
		return ""
	})
	node := strings.TrimSpace(l.kubectl("get", "pod", "writer", "-o", "jsonpath={.spec.nodeName}"))
	require.Contains(t, onNode(l.ctx, t, node, "pkill -9 -f '^/fetch mirror' && echo killed || true"), "killed")
	l.exec("writer", "echo 2 >/data/new && rm /data/"+first)
	l.uploaded("ledger", map[string]string{"new": "2\n", first: "changed\n"}) // nothing is deleted at the source

	l.exec("writer", "echo last >/data/last")
	l.kubectl("delete", "vm", "ledger", "--wait=false")
	l.kubectl("delete", "pod", "writer")
	l.kubectl("wait", "--for=delete", "vm/ledger", "--timeout=480s")
	l.uploaded("ledger", map[string]string{"last": "last\n", "new": "2\n", first: "changed\n"})
	require.Empty(t, l.kubectl("get", "pvc,jobs", "-o", "name"))
}

// uploaded waits until a bucket has these objects.
func (l *library) uploaded(bucket string, want map[string]string) {
	l.t.Helper()
	l.ifFailed(func(ctx context.Context) (string, error) {
		return shared.Kubectl(ctx, "-n", l.namespace, "get", "vm", "-o", "yaml")
	})
	for key, content := range want {
		await.Until(l.t, patience, func() string {
			got, err := l.server.Get(l.ctx, bucket, key)
			return await.Missing(err == nil && string(got) == content, "object %s is %q (%v) and not %q", key, got, err, content)
		})
	}
}

// A dataset that is larger than its volumes reports the sizes before anything is read, and is loaded
// once a person has enlarged the volumes. So is one whose volume another pod fills during the load.
func TestDatasetThatDoesNotFit(t *testing.T) {
	slots.Parallel(t, 130)
	l := newLibrary(t, "tight")
	l.bucket("tight", slices.Repeat([]int{10 * mib}, 9)...)
	filled := l.dataset("filled", "S3-Dev", "tight", 1, "bandwidth: 512Ki")
	require.NoError(t, l.apply(strings.Replace(filled, "400Mi", "128Mi", 1)))
	l.fill("filled")
	manifest := l.dataset("tight", "S3", "tight", 1)
	require.NoError(t, l.apply(strings.Replace(manifest, "400Mi", "64Mi", 1)))
	vm := l.until("tight", failed)
	require.Regexp(t, `no room: 90(\.0)? MiB more are needed, and the destination has 6[34](\.\d+)? MiB free`, vm.Status.Volumes[0].Message)
	require.Empty(t, l.bearing(vm))

	require.NoError(t, l.apply(strings.Replace(manifest, "400Mi", "128Mi", 1)))
	vm = l.until("tight", loaded)
	l.reader("reader", vm, "")
	require.Equal(t, l.sums, l.read("reader"))
	total, _ := l.df("reader")
	require.EqualValues(t, 128*mib, total)
	l.goesOn("filled", strings.Replace(filled, "512Ki", "8Mi", 1))
}

// fill starts a pod that uses up a volume's space while it is being loaded.
func (l *library) fill(name string) {
	l.t.Helper()
	vm := l.until(name, func(vm flexlvmv1.VolumeManager) string {
		if v := vm.Status.Volumes; len(v) != 1 || v[0].VolumeSource == nil || v[0].Progress == nil || v[0].Progress.Files == 0 {
			return fmt.Sprintf("nothing has come: %+v", v)
		}
		return ""
	})
	l.reader("hog", vm, "")
	require.Contains(l.t, l.execFails("hog", "dd if=/dev/zero of=/data/hog bs=64k"), "No space left on device")
}

// goesOn checks that a filled volume is reported as full, and that after its growth only the missing
// files are loaded. No file is lost or loaded again.
func (l *library) goesOn(name, manifest string) {
	l.t.Helper()
	vm := l.until(name, failed)
	require.Contains(l.t, vm.Status.Volumes[0].Message, "the destination has no room left; make the volume larger or select less")
	l.warned(name, "the destination has no room left; make the volume larger or select less")
	inodes := func() map[string]bool {
		there := map[string]bool{}
		for line := range strings.Lines(l.exec("hog", findFiles+" -exec ls -i {} +")) {
			there[strings.TrimSpace(line)] = true
		}
		return there
	}
	before, hog := inodes(), l.read("hog")["hog"]
	require.Greater(l.t, len(before), 1)
	require.Less(l.t, len(before), len(l.sums)+1)

	require.NoError(l.t, l.apply(manifest))
	l.until(name, loaded)
	want := maps.Clone(l.sums)
	want["hog"] = hog
	require.Equal(l.t, want, l.read("hog"))
	now := inodes()
	for file := range before {
		require.Contains(l.t, now, file, "it is the same file")
	}
}

// A load that cannot succeed, here of the example, reports why, and starts again after a person has
// fixed it.
func TestDatasetWithWrongCredentials(t *testing.T) {
	slots.Parallel(t, 40)
	l := newLibrary(t, "locked")
	l.bucket("locked", 1*mib)
	require.NoError(t, l.apply(secret("s3", l.server.Access, "not-the-secret")))
	require.NoError(t, l.apply(shippedDataset(t, "s3.yaml", "s3://bucket/images/", "s3://locked/",
		"awsCredentialsSecretName: s3-credentials", "awsCredentialsSecretName: s3\n        endpointURL: "+l.server.Endpoint)))
	vm := l.until("s3-one", failed)
	require.Equal(t, flexlvmv1.MessageFailed, vm.Status.Message)
	require.Contains(t, vm.Status.Volumes[0].Message, "check the credentials", "it says what to do")
	require.NotContains(t, l.kubectl("get", "vm,jobs,pods,events", "-o", "yaml"), "not-the-secret")
	require.Empty(t, l.bearingOf(vm, "images"))

	require.NoError(t, l.apply(secret("s3", l.server.Access, l.server.Secret)))
	l.kubectl("annotate", "vm", "s3-one", "flexlvm.io/retry=1")
	vm = l.until("s3-one", loaded)
	l.reader("reader", vm, "")
	require.Equal(t, l.sums, l.read("reader"))
}
