//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

// TestJobs runs volumes that pods of several nodes share, on a real NFS server. It runs alone until the
// server is back, because while the server is away kubelet may block with other tests' pods, too.
// Tests run in the order of their files, and this one must follow TestNothingIsLostWithKubeletAndNode, which
// reboots the server's node.
func TestJobs(t *testing.T) {
	b := newJobsBed(t)
	await.Until(t, patience, func() string {
		b.wasReady = b.provisionerReady(t)
		return await.Missing(strings.HasPrefix(b.wasReady, "true "), "the provisioner is not ready")
	})
	t.Run("a job whose server is away meanwhile, its files archived", b.testJobThroughOutage)
	t.Run("export read-only", b.testReadOnly)
	// A busy provisioner may create the new directory twice, so this test runs alone.
	t.Run("directory removed by hand", b.testRemovedByHand)
	t.Run("links planted", b.testPlanted)

	slots.Group(t)
	t.Run("at once", func(t *testing.T) {
		for _, test := range []struct {
			name    string
			seconds int
			run     func(*testing.T)
		}{
			{"sizes enforced by the server's node", 120, b.testEnforcedSize},
			{"a PersistentVolume that a person wrote", 60, b.testStaticVolume},
			{"a volume for each worker", 60, b.testVolumePerWorker},
			{"a job on both nodes, its files deleted with it", 55, b.testJobDeleted},
			{"a user without root, and a quota of the server", 0, b.testUserAndQuota},
			{"a dataset", 0, b.testDataset},
		} {
			t.Run(test.name, func(t *testing.T) {
				slots.Parallel(t, test.seconds)
				test.run(t)
			})
		}
	})
	require.Equal(t, "precious precious", b.onServer(t, "echo $(cat bait/file archived-bait/file)"))
	await.Until(t, patience, func() string { // the daemon lifts limits a moment after a directory is gone
		left := b.onServer(t, "ls -A .flexlvm; ls -A | grep deleting || true")
		return await.Missing(left == "", "this is left, half done: %s", left)
	})
}

// submit starts a job as users do.
func (b *jobsBed) submit(t *testing.T, name, class, mode string, workers int, script string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience) // the program has to be built
	defer cancel()
	cmd := b.Command(ctx, "make", "-s", "-C", b.source, "job-recipe", "NAME="+name, fmt.Sprintf("WORKERS=%d", workers), "IMAGE=busybox:1.36",
		"CLASS="+class, "MODE="+mode, "SIZE=16Mi", "CMD="+strings.ReplaceAll(script, "$", "$$"), "ARGS=--namespace=default --kubeconfig="+b.AdminKubeconfig())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "job.batch/"+name+" started")
}

// listed checks that the plugin lists a job and prints its workers' output.
func (b *jobsBed) listed(t *testing.T, name, state string) {
	t.Helper()
	require.Regexp(t, name+` +`+state+` +4 +0 +4 `, b.plugin(t, "job", "ls"))
	require.Contains(t, b.plugin(t, "job", "logs", name), "[3] printed by worker 3")
}

// work is the script of a worker that uses everything: the directories, the log, the others' results,
// and the number of workers.
const work = `
set -e
tool=/flexlvm/flexlvm-job
if $tool worker-dir-exists; then exit 9; fi
log=$($tool log-file)
echo "worker $JOB_COMPLETION_INDEX of $WORKERS begins on $(cat /etc/hostname)" >>"$log"
dir=$($tool worker-dir)
$tool worker-dir-exists
echo "$JOB_COMPLETION_INDEX" >"$dir/new"
mv "$dir/new" "$dir/part" # complete once it has its name
until [ "$(ls -d "$($tool job-dir)"/worker-*/part | wc -l)" = "$WORKERS" ]; do sleep 0.5; done
cat "$($tool job-dir)"/worker-*/part | sort >"$dir/all"
echo "worker $JOB_COMPLETION_INDEX ends" >>"$log"
echo "printed by worker $JOB_COMPLETION_INDEX"
`

// testJobDeleted runs four workers on two nodes that wait for each other through their shared volume. An
// earlier job had the same name, and its directory is not used again.
func (b *jobsBed) testJobDeleted(t *testing.T) {
	b.submit(t, "count", "shared-delete", "ReadWriteMany", 4, work)
	volume, directory := b.bound(t, "job-count")
	require.Equal(t, "64Mi ReadWriteMany", b.kubectl(t, "get", "pv", volume, "-o", "jsonpath={.spec.capacity.storage} {.spec.accessModes[0]}"))
	require.Equal(t, `["nfsvers=4.2","hard","timeo=50","actimeo=1"]`, b.kubectl(t, "get", "pv", volume, "-o", "jsonpath={.spec.mountOptions}"))
	b.kubectl(t, "wait", "job/count", "--for=condition=Complete", patiently)
	b.listed(t, "count", "Complete")
	nodes := b.kubectl(t, "get", "pods", "-l", "app.kubernetes.io/name=count", "-o", "jsonpath={.items[*].spec.nodeName}")
	require.Contains(t, nodes, "node1")
	require.Contains(t, nodes, "node2")
	require.Equal(t, "logs worker-0 worker-1 worker-2 worker-3", b.onServer(t, "cd "+directory+"; echo *"))
	for worker := range 4 {
		require.Equal(t, "0 1 2 3", b.onServer(t, fmt.Sprintf("echo $(cat %s/worker-%d/all)", directory, worker)))
		log := b.onServer(t, fmt.Sprintf("cat %s/logs/worker-%d.log", directory, worker))
		require.Contains(t, log, fmt.Sprintf("worker %d of 4 begins", worker))
		require.Contains(t, log, fmt.Sprintf("worker %d ends", worker))
	}
	b.kubectl(t, "delete", "job", "count")
	b.gone(t, volume)
	require.Empty(t, b.onServer(t, "ls -d *"+volume+" || true"), "the claim went with the job, and its files with the claim")
	b.say(t, "a job ran on both nodes, and is gone")
}

// testJobThroughOutage checks that no write of a job is lost while the server is away, and that claims are created
// and deleted when it is back.
func (b *jobsBed) testJobThroughOutage(t *testing.T) {
	b.claim(t, "early", "shared-delete")
	b.submit(t, "count", "flexlvm-nfs", "ReadWriteMany", 2, `
		enough= && trap 'enough=yes' USR1
		dir=$(/flexlvm/flexlvm-job worker-dir) && i=0
		until [ "$enough" ]; do i=$((i+1)); echo $i >>$dir/lines || exit 1; sleep 1; done
		echo wrote $i`)
	volume, directory := b.bound(t, "job-count")
	await.Until(t, patience, func() string {
		if b.onServer(t, "cat "+directory+"/worker-*/lines 2>/dev/null | grep -c '^3$' || true") != "2" {
			return "both workers do not write yet"
		}
		return ""
	})
	early, earlyDirectory := b.bound(t, "early")
	b.down(t)
	b.claim(t, "late", "shared-delete")
	b.deleteClaim(t, "early")
	await.Until(t, patience, func() string {
		stuck := b.stuckWorkers(t)
		return await.Missing(stuck == 2, "%d workers wait for the server", stuck)
	})
	b.said(t, "late", "ProvisioningFailed", "the server does not answer")
	b.said(t, early, "VolumeFailedDelete", "the server does not answer")
	require.Equal(t, b.wasReady, b.provisionerReady(t), "a server that is down is no reason to start again")
	require.Equal(t, "0", b.kubectl(t, "get", "job", "count", "-o", "jsonpath={.status.failed}{.status.succeeded}0"))
	b.up(t)
	wrote := ""
	for worker := range 2 {
		label := fmt.Sprintf("app.kubernetes.io/name=count,batch.kubernetes.io/job-completion-index=%d", worker)
		b.kubectl(t, "exec", b.kubectl(t, "get", "pods", "-l", label, "-o", "jsonpath={.items[0].metadata.name}"), "--", "kill", "-USR1", "1")
		b.kubectl(t, "wait", "pod", "-l", label, "--for=jsonpath={.status.phase}=Succeeded", patiently)
		wrote += b.kubectl(t, "logs", "-l", label)
	}
	b.kubectl(t, "wait", "job/count", "--for=condition=Complete", patiently)
	require.Equal(t, strings.TrimSpace(wrote), b.onServer(t, fmt.Sprintf("for w in 0 1; do n=$(wc -l <%[1]s/worker-$w/lines); seq $n | cmp - %[1]s/worker-$w/lines && echo wrote $n; done", directory)))
	require.Equal(t, "0 0", b.kubectl(t, "get", "pods", "-l", "app.kubernetes.io/name=count", "-o", "jsonpath={.items[*].status.containerStatuses[0].restartCount}"))
	b.kubectl(t, "delete", "job", "count")
	b.gone(t, volume)
	b.said(t, volume, "DirectoryArchived", "archived-"+directory)
	require.Equal(t, "lines", b.onServer(t, "ls archived-"+directory+"/worker-0"))

	b.gone(t, early)
	require.Empty(t, b.onServer(t, "ls -d *"+earlyDirectory+"* || true"))
	late, _ := b.bound(t, "late")
	b.deleteClaim(t, "late")
	b.gone(t, late)
}

// stuckWorkers counts the jobs' workers on both nodes that are blocked in the kernel.
func (b *jobsBed) stuckWorkers(t *testing.T) (n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, node := range []string{"node1", serverNode} {
		out, err := b.Node(ctx, node, "sh", "-c", `for p in /proc/[0-9]*; do
			grep -qs '^State:.D' $p/status && tr '\0' '\n' 2>/dev/null <$p/environ | grep -q '^JOB_COMPLETION_INDEX=' && echo $p
		done; true`)
		require.NoError(t, err, out)
		n += strings.Count(out, "/proc/")
	}
	return n
}

// testUserAndQuota checks what docs/jobs.md says about users without root and the server's quotas.
func (b *jobsBed) testUserAndQuota(t *testing.T) {
	b.claim(t, "quota", "shared-retain")
	volume, directory := b.bound(t, "quota")
	b.onServer(t, fmt.Sprintf(`xfs_quota -x -c 'project -s -p %[1]s/%[2]s 4711' %[1]s >/dev/null
		xfs_quota -x -c 'limit -p bhard=16m 4711' %[1]s`, b.export, directory))
	b.apply(t, `
apiVersion: v1
kind: Pod
metadata: {name: quota, namespace: default}
spec:
  nodeSelector: {kubernetes.io/hostname: node1}
  terminationGracePeriodSeconds: 0
  securityContext: {runAsUser: 1234, runAsGroup: 1234, runAsNonRoot: true}
  containers:
  - name: main
    image: busybox:1.36
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "exec sleep 86400"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: quota}}]
`)
	b.kubectl(t, "wait", "pod/quota", "--for=condition=Ready", patiently)
	require.Equal(t, "1234:1234\n", b.kubectl(t, "exec", "quota", "--", "sh", "-c", "echo mine >/data/file && stat -c %u:%g /data/file"))
	require.Equal(t, "16384\n", b.kubectl(t, "exec", "quota", "--", "sh", "-c", "df -kP /data | awk 'END { print $2 }'"))
	out, err := b.Kubectl(t.Context(), "exec", "quota", "--", "sh", "-c", "dd if=/dev/zero of=/data/fill bs=1M count=20 conv=fsync")
	require.Error(t, err, out)
	require.Regexp(t, "No space left on device|quota exceeded", err.Error())
	b.kubectl(t, "delete", "pod", "quota")
	b.deleteClaim(t, "quota")
	b.gone(t, volume)
	require.Equal(t, "mine", b.onServer(t, "cat "+directory+"/file && rm -r "+directory+" .flexlvm/"+volume), "retained")
}

// provisionerReady returns whether the provisioner is ready, and its number of restarts.
func (b *jobsBed) provisionerReady(t *testing.T) string {
	t.Helper()
	return b.kubectl(t, "-n", system, "get", "pods", "-l", "app.kubernetes.io/name=flexlvm-nfs-provisioner", "-o", "jsonpath={.items[0].status.containerStatuses[0].ready} {.items[0].status.containerStatuses[0].restartCount}")
}

func (b *jobsBed) testReadOnly(t *testing.T) {
	b.claim(t, "before", "shared-delete")
	volume, directory := b.bound(t, "before")
	export := func(how string) {
		b.onServer(t, "echo '"+b.export+" *("+how+",sync,no_root_squash,no_subtree_check)' >/etc/exports; exportfs -ra; exportfs -f") //nolint:misspell // a program's name
	}
	export("ro")
	b.claim(t, "after", "shared-delete")
	b.deleteClaim(t, "before")
	b.said(t, "after", "ProvisioningFailed", "the export is read-only; export it rw")
	b.said(t, volume, "VolumeFailedDelete", "the export is read-only; export it rw")
	require.Equal(t, directory, b.onServer(t, "ls -d "+directory))
	export("rw")
	b.gone(t, volume)
	volume, _ = b.bound(t, "after")
	b.deleteClaim(t, "after")
	b.gone(t, volume)
}

func (b *jobsBed) testRemovedByHand(t *testing.T) {
	b.claim(t, "by-hand", "shared-delete")
	volume, directory := b.bound(t, "by-hand")
	b.onServer(t, "rmdir "+directory)
	b.deleteClaim(t, "by-hand")
	b.gone(t, volume)
	b.said(t, volume, "DirectoryMissing", "was not there any more")
}

// testPlanted checks that links planted by a writer of the export or by a tenant lead nowhere else.
func (b *jobsBed) testPlanted(t *testing.T) {
	b.claim(t, "planted", "shared-delete")
	volume, directory := b.bound(t, "planted")
	b.onServer(t, fmt.Sprintf(`cd %[1]s && mkdir -p deep/er && ln -s ../bait beside && ln -s ../../bait deep/er/up && ln -s /etc out
		cd .. && mv %[1]s aside && ln -s bait %[1]s`, directory))
	b.deleteClaim(t, "planted")
	b.said(t, volume, "VolumeFailedDelete", "is not a directory")
	b.onServer(t, fmt.Sprintf("rm %[1]s && mv aside %[1]s", directory))
	b.gone(t, volume)
	require.Empty(t, b.onServer(t, "ls -d *"+filepath.Base(directory)+"* || true"))
}

// testDataset checks that a share of a real NFS server is available to pods of every node without a
// copy.
func (b *jobsBed) testDataset(t *testing.T) {
	n := newTenant(t, "archive")
	b.onServer(t, "mkdir archive && echo precious >archive/file")
	l := &library{tenant: n}
	require.NoError(t, l.apply(fmt.Sprintf(`
apiVersion: flexlvm.io/v1
kind: VolumeManager
metadata: {name: archive}
spec:
  volumes:
  - id: data
    sourceType: NFS
    replicas: 1
    accessMode: ReadWriteMany
    capacity: 1Gi
    labels: {dataset: archive}
    options: {server: %q, path: %s/archive}
`, b.server, b.export)))
	vm := l.until("archive", func(vm flexlvmv1.VolumeManager) string {
		if vm.Status.State != flexlvmv1.StateRunning {
			return fmt.Sprintf("its state is %q", vm.Status.State)
		}
		return ""
	})
	l.reader("reader", vm, "node1")
	require.Equal(t, "precious\n", l.exec("reader", "cat /data/file"))
	l.exec("reader", "echo answer >/data/answer")
	require.Equal(t, "answer", b.onServer(t, "cat archive/answer"))
	l.kubectl("delete", "pod", "reader")
	l.kubectl("delete", "vm", "archive", patiently)
	require.Empty(t, l.kubectl("get", "pvc", "-o", "name"))
	require.Equal(t, "precious", b.onServer(t, "cat archive/file"), "the share is untouched")
}
