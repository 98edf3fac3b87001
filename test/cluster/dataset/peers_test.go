//go:build cluster

package dataset_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

const indexedReport = `{"state":"complete","filesDone":3,"filesTotal":3,"bytesDone":3145728,"bytesTotal":3145728,"index":"sha256:abc"}`

// serves returns the status of a pod that serves a replica.
func serves() *corev1.PodStatus {
	out := running(corev1.ConditionTrue)
	out.PodIP, out.PodIPs = "127.0.0.1", []corev1.PodIP{{IP: "127.0.0.1"}}
	return out
}

// A rack records which loaders read from the source and which copied from peers.
type rack struct {
	mu                sync.Mutex
	fails             bool // copies fail
	seen              map[string]bool
	atSource, copying []string
}

func (r *rack) play(pod *corev1.Pod) *corev1.PodStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	if pod.Labels["flexlvm.io/role"] == "serve" {
		return serves()
	}
	args := strings.Join(pod.Spec.Containers[0].Args, " ")
	copies := strings.Contains(args, "--peer-index=sha256:abc --peer=127.0.0.1:8091")
	if !r.seen[pod.Name] { // the loader runs for a moment first
		r.seen[pod.Name] = true
		if copies {
			r.copying = append(r.copying, pod.Labels["flexlvm.io/replica"])
		} else {
			r.atSource = append(r.atSource, pod.Labels["flexlvm.io/replica"])
		}
		return running(corev1.ConditionFalse)
	}
	if copies && r.fails {
		return terminated(75, `{"state":"failed","message":"no peer has the index"}`)
	}
	return terminated(0, indexedReport)
}

// testPeers checks that one replica is loaded from the source, the others are copied from it, and
// nothing is served once all are complete. If copying fails, replicas are loaded from the source.
func (k *kubelets) testPeers(t *testing.T) {
	s := k.namespace(t, "peers")
	r := &rack{seen: map[string]bool{}}
	s.play(s.name, r.play)
	peers := with(s3, "replicas: 1", "replicas: 4", "options: {", "options: {peersSecretName: peers, ")
	s.make("v", peers)
	s.status("v", flexlvmv1.StateRunning, "success")
	slices.Sort(r.copying)
	require.Equal(t, []string{"0"}, r.atSource)
	require.Equal(t, []string{"1", "2", "3"}, r.copying)
	await.Until(t, longest, func() string {
		jobs := &batchv1.JobList{}
		require.NoError(t, k.client.List(t.Context(), jobs, client.InNamespace(s.name), client.MatchingLabels{"flexlvm.io/role": "serve"}))
		return await.Missing(len(jobs.Items) == 0, "%d replicas are served", len(jobs.Items))
	})
	s.remove(s.get("v"))
	s.nothingLeft()

	r.mu.Lock()
	r.fails, r.atSource = true, nil
	r.mu.Unlock()
	s.make("v", with(peers, "replicas: 4", "replicas: 2"))
	s.status("v", flexlvmv1.StateRunning, "success")
	require.Equal(t, []string{"0", "1"}, r.atSource)
	s.told("v", "PeersFailed", "could not be copied from other replicas, and is loaded from its source: no peer has the index")
	s.remove(s.get("v"))
	s.nothingLeft()
	s.play(s.name, nil)
}

// testPeerJobs checks that a serving Job only reads, and mounts no Secret but that of the peers.
func (k *kubelets) testPeerJobs(t *testing.T, s *space, stolen client.Client) {
	t.Helper()
	s.make("p", with(rich, "awsCredentialsSecretName: s, ", "awsCredentialsSecretName: s, peersSecretName: peers, "))
	made := s.loader("p-a-0")
	secret := func(j *batchv1.Job, name string) {
		podOf(j).Volumes = slices.DeleteFunc(podOf(j).Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil })
		podOf(j).Volumes[1] = corev1.Volume{Name: "peers", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}}
		containerOf(j).VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data", ReadOnly: true}, {Name: "peers", MountPath: "/peers", ReadOnly: true}}
		j.Labels["flexlvm.io/role"] = "serve"
		podOf(j).Affinity = nil
		args("serve", "--address=:8091", "--peers-dir=/peers", "--", "/data")(j)
	}
	for name, c := range map[string]struct {
		change func(*batchv1.Job)
		fine   bool
	}{
		"serves":           {func(*batchv1.Job) {}, true},
		"another Secret":   {func(j *batchv1.Job) { secret(j, "s") }, false},
		"of somebody else": {func(j *batchv1.Job) { secret(j, "theirs") }, false},
		"in its place":     {func(j *batchv1.Job) { containerOf(j).VolumeMounts[1].MountPath = "/credentials" }, false},
		"writes":           {func(j *batchv1.Job) { containerOf(j).VolumeMounts[0].ReadOnly = false }, false},
		"another folder":   {args("serve", "--", "/peers"), false},
		"on the node":      {func(j *batchv1.Job) { containerOf(j).Ports[0].HostPort = containerOf(j).Ports[0].ContainerPort }, false},
	} {
		job := made.DeepCopy()
		ofReplica(job, "p-a", "9")
		secret(job, "peers")
		c.change(job)
		err := stolen.Create(t.Context(), job, client.DryRunAll)
		if c.fine {
			require.NoError(t, err, name)
			continue
		}
		require.Error(t, err, name)
		require.Regexp(t, `'provisioner-(jobs|loaders)[.]flexlvm[.]io'`, err.Error(), name)
	}
	s.remove(s.get("p"))
}
