//go:build cluster

package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// make runs a job's make target as users do.
func (b *jobsBed) make(t *testing.T, args ...string) {
	t.Helper()
	out, err := b.Command(t.Context(), append([]string{"make", "-s", "-C", b.source, "job-recipe"}, args...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "started in namespace default")
}

// plugin runs the kubectl plugin.
func (b *jobsBed) plugin(t *testing.T, args ...string) string {
	t.Helper()
	out, err := b.Command(t.Context(), append([]string{"go", "run", "-C", b.source, "./cmd/kubectl-flexlvm", "--kubeconfig=" + b.AdminKubeconfig(), "--namespace=default"}, args...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// alone is the script of a worker with its own volume of the requested size. It fails once, and then
// finds what it has written.
const alone = `
set -e
tool=/flexlvm/flexlvm-job
dir=$($tool worker-dir)
if [ ! -e "$dir/begun" ]; then echo "$JOB_COMPLETION_INDEX" >"$dir/begun"; exit 7; fi
[ "$(cat "$dir/begun")" = "$JOB_COMPLETION_INDEX" ]
[ "$(ls -d /persistent/worker-* | wc -l)" = 1 ]
[ "$($tool worker-size)" = 33554432 ]
[ "$(df -kP /persistent | awk 'END { print $2 }')" = 32768 ]
$tool worker-fits
echo "result of worker $JOB_COMPLETION_INDEX" >"$dir/result" # before the volume is full: a server counts what is removed for a moment
# Synced: NFS may tell a write its failure only then.
if dd if=/dev/zero of=/persistent/fill bs=1M count=40 conv=fsync 2>/dev/null; then exit 8; fi
rm /persistent/fill
`

// testVolumePerWorker runs workers with local volumes, which no two nodes share, as in the example. The
// workers' results can be read after they have ended, and are deleted with the job.
func (b *jobsBed) testVolumePerWorker(t *testing.T) {
	// In another namespace, because its job may have the name of one that runs.
	b.kubectl(t, "apply", "--dry-run=server", "-n", "kube-public", "-f", filepath.Join(b.source, "examples/jobs/volume-per-worker.yaml"))
	b.make(t, "NAME=alone", "WORKERS=2", "IMAGE=busybox:1.36", "CLASS=flexlvm", "SIZE=32Mi", "CMD="+strings.ReplaceAll(alone, "$", "$$"),
		"ARGS=--volume-per-worker --namespace=default --kubeconfig="+b.AdminKubeconfig())
	b.kubectl(t, "wait", "job/alone", "--for=condition=Complete", patiently)
	require.Equal(t, "1 1", b.kubectl(t, "get", "pods", "-l", "batch.kubernetes.io/job-name=alone", "-o", "jsonpath={.items[*].status.containerStatuses[0].restartCount}"))
	listed := b.plugin(t, "job", "collect", "alone", "--list")
	require.Regexp(t, `(?m)^0 +alone-0-\w+-persistent +node\d +Succeeded$`, listed)
	require.Regexp(t, `(?m)^1 +alone-1-\w+-persistent +node\d +Succeeded$`, listed)
	for range 2 { // results that were collected already are no error
		said := b.plugin(t, "job", "collect", "alone")
		require.Contains(t, said, "kubectl cp -n default alone-collect-1:/persistent alone/worker-1")
	}
	for _, worker := range []string{"0", "1"} {
		pod := "alone-collect-" + worker
		b.kubectl(t, "wait", "pod/"+pod, "--for=condition=Ready", patiently)
		require.Equal(t, "result of worker "+worker+"\n", b.kubectl(t, "exec", pod, "--", "cat", "/persistent/worker-"+worker+"/result"))
		out, err := b.Kubectl(t.Context(), "exec", pod, "--", "touch", "/persistent/new")
		require.Error(t, err, out)
		require.Contains(t, err.Error(), "Read-only file system")
	}
	b.kubectl(t, "delete", "job", "alone")
	await.Until(t, patience, func() string {
		left := b.kubectl(t, "get", "pods,pvc", "-l", "app.kubernetes.io/name=alone", "-o", "name")
		return await.Missing(left == "", "left: %s", left)
	})
	b.say(t, "workers with volumes of their own have ended, and their results were read")
}

// testStaticVolume runs a job on a PersistentVolume that a person wrote, from a file with Twister2's
// names, both as in the examples.
func (b *jobsBed) testStaticVolume(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(b.source, "examples/jobs/static-volume.yaml"))
	require.NoError(t, err)
	b.onServer(t, "mkdir static && echo precious >static/file")
	manifest := strings.NewReplacer("nfs.example.org", b.server, "/srv/jobs/1", b.export+"/static").Replace(string(content))
	b.apply(t, manifest)
	submit := func() {
		b.make(t, "NAME=static", "WORKERS=2", "IMAGE=busybox:1.36", "SIZE=16Mi", "CONFIG="+filepath.Join(b.source, "examples/jobs/twister2.yaml"), "CMD="+strings.ReplaceAll(`set -e
			dir=$(/flexlvm/flexlvm-job worker-dir)
			[ "$(/flexlvm/flexlvm-job worker-size)" = 16777216 ]
			echo "$WORKERS" >>"$dir/runs"
			if dd if=/dev/zero of=$dir/fill bs=1M count=20 2>/dev/null && /flexlvm/flexlvm-job worker-fits; then exit 8; fi
			rm $dir/fill
			/flexlvm/flexlvm-job worker-fits`, "$", "$$"), "ARGS=--namespace=default --kubeconfig="+b.AdminKubeconfig())
	}
	submit()
	volume, _ := b.bound(t, "job-static")
	require.Equal(t, "job-volume-1", volume)
	b.kubectl(t, "wait", "job/static", "--for=condition=Complete", patiently)
	b.kubectl(t, "delete", "job", "static")
	b.kubectl(t, "wait", "pv/job-volume-1", "--for=jsonpath={.status.phase}=Released", patiently)
	require.Equal(t, "precious 2 2", b.onServer(t, "echo $(cat static/file static/worker-0/runs static/worker-1/runs)"), "what is there stays")

	b.kubectl(t, "delete", "pv", "job-volume-1")
	b.apply(t, manifest)
	submit()
	b.kubectl(t, "wait", "job/static", "--for=condition=Complete", patiently)
	require.Equal(t, "2 2", b.onServer(t, "echo $(cat static/worker-0/runs)"), "the next job finds it")
	b.kubectl(t, "delete", "job", "static")
	b.kubectl(t, "delete", "pv", "job-volume-1")
	b.kubectl(t, "delete", "storageclass", "job-volumes")
	b.onServer(t, "rm -r static")
}
