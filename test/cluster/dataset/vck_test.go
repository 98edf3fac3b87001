//go:build cluster

package dataset_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

// Volumes with the fields and values of VCK's published manifests and tests, and with values for those
// that the manifests leave open.
const (
	vckHead   = "accessMode: ReadWriteOnce, capacity: 5Gi, labels: {key1: val1, key2: val2}"
	vckTar    = `awsCredentialsSecretName: s3-creds, sourceURL: "s3://e2e-test/cifar-100-python.tar.gz", endpointURL: "http://10.0.0.9:9000"`
	vckTar0   = `awsCredentialsSecretName: s3-creds, sourceURL: "s3://neon-stockdatasets/cifar-100-python.tar.gz"`
	vckPach   = `repo: test, branch: master, outputPath: test`
	vckShare  = `{id: vol1, replicas: 1, sourceType: NFS, accessMode: ReadWriteMany, capacity: 5Gi, labels: {key1: val1, key2: val2}, options: {server: 10.0.0.1, path: /x}}`
	vckShare0 = `{id: vol1, replicas: 0, sourceType: NFS, accessMode: ReadWriteMany, capacity: .5Gi, nodeAffinity: {}, tolerations: null, labels: {key1: val1, key2: val2}, options: {server: 10.0.0.1, path: /}}`
	// kvcTar has the form of VCK's first versions and KVC: both URLs are fields.
	kvcTar = `{id: vol1, replicas: 1, sourceType: S3, sourceURL: "s3://neon-stockdatasets/cifar-100-python.tar.gz", endpointURL: "minio-svc.default:9000", ` + vckHead + `, options: {awsCredentialsSecretName: s3-creds}}`
)

func vckVolume(id, kind string, replicas int, options string) string {
	return fmt.Sprintf(`{id: %s, replicas: %d, sourceType: %s, nodeAffinity: {}, tolerations: null, %s, options: {%s}}`, id, replicas, kind, vckHead, options)
}

// published is a published manifest.
type published struct {
	api     string // its apiVersion
	expect  string // in words
	volumes []string
}

const (
	vck1alpha1 = "vck.intelai.org/v1alpha1"
	vck1       = "vck.intelai.org/v1"
	kvc1       = "kvc.kubeflow.org/v1"
)

// examplesOfVCK are the manifests of its folder resources/customresources and of its users' guide.
func examplesOfVCK() map[string]published {
	inSpec := fmt.Sprintf(`{id: vol2, replicas: 1, sourceType: S3, sourceURL: "s3://neon-stockdatasets/cifar-100-python.tar.gz", %s, options: {awsCredentialsSecretName: s3-creds}}`, vckHead)
	second := with(vckVolume("vol1", "S3", 1, vckTar0), "neon-stockdatasets/cifar-100-python.tar.gz", "helium-stockdatasets-dev/alexnet.p", "{key1: val1, key2: val2}", "{key3: val3, key4: val4}")
	otherLabels := []string{"vol1", "vol2", "{key1: val1, key2: val2}", "{key3: val3, key4: val4}"}
	return map[string]published{
		"example-s3":           {vck1alpha1, "one node has the file", []string{vckVolume("vol1", "S3", 1, vckTar0)}},
		"example-s3-replicas":  {vck1alpha1, "three nodes have it", []string{vckVolume("vol1", "S3", 3, vckTar0)}},
		"example-s3-two":       {vck1alpha1, "both are served, the second by another id", []string{vckVolume("vol1", "S3", 1, vckTar0), second}},
		"example-minio":        {vck1alpha1, "the loader finds out what the server speaks", []string{vckVolume("vol1", "S3", 1, vckTar0+`, endpointURL: "minio-svc.default:9000"`)}},
		"example-minio-before": {vck1, "the same, of a field", []string{kvcTar}},
		"example-nfs":          {vck1alpha1, "the share has a claim", []string{vckShare}},
		"example-nfs-replicas": {vck1alpha1, "the share has one claim, however many replicas", []string{with(vckShare, "replicas: 1", "replicas: 3")}},
		"example-nfs-two":      {vck1alpha1, "each has a claim", []string{vckShare, with(vckShare, otherLabels...)}},
		"example-multiple":     {vck1alpha1, "the share has a claim, and one node has the file", []string{vckShare, with(inSpec, "{key1: val1, key2: val2}", "{key3: val3, key4: val4}")}},
		"example-pachyderm":    {vck1alpha1, "one node has the file, in the root of the volume", []string{vckVolume("vol1", "Pachyderm", 1, `repo: test, branch: master, filePath: s3/test`)}},
		"guide-s3":             {vck1, "one node has the file, whose URL is a field", []string{with(inSpec, "vol2", "vol1", "s3-creds", "aws-creds")}},
		"guide-distribution":   {vck1, "two nodes have what matches one pattern, two what matches the other", []string{fmt.Sprintf(`{id: vol1, replicas: 4, sourceType: S3, %s, options: {awsCredentialsSecretName: aws-secret, sourceURL: "s3://foo/bar", distributionStrategy: '{"*0_1*": 2, "*1_1*": 2}'}}`, vckHead)}},
		"kvc-nfs":              {kvc1, "its client wrote what was not given as empty fields", []string{with(vckShare0, "{id: vol1", `{id: vol1, sourceURL: "", endpointURL: ""`)}},
		"kvc-aeon":             {kvc1, "an empty cache", []string{fmt.Sprintf(`{id: vol1, replicas: 1, sourceType: Aeon, %s, options: {dataPath: /var/datasets/cache}}`, vckHead)}},
	}
}

// testsOfVCK are the manifests that its end-to-end tests expected to run, with what its controller
// stored of them.
func testsOfVCK() map[string]published {
	distributed := vckVolume("vol1", "S3", 1, `awsCredentialsSecretName: s3-creds, sourceURL: "s3://e2e-test", endpointURL: "http://10.0.0.9:9000", distributionStrategy: '{"*cifar*": 1}'`)
	return map[string]published{
		"e2e-s3":                 {vck1alpha1, "one node has the file", []string{vckVolume("vol1", "S3", 1, vckTar)}},
		"e2e-resync":             {vck1alpha1, "one node has it, pods may write, and what they change is uploaded", []string{vckVolume("vol1", "S3", 1, vckTar+`, resync: "true", timeoutForDataDownload: 20s`)}},
		"e2e-distribution":       {vck1alpha1, "one node has what matches, in whatever folder", []string{distributed}},
		"e2e-nfs":                {vck1alpha1, "the share has a claim", []string{vckShare0}},
		"e2e-multiple":           {vck1alpha1, "one node has the file, and the share has a claim, by another id", []string{vckVolume("vol1", "S3", 1, vckTar), with(vckShare0, "{key1: val1, key2: val2}", "{key3: val3, key4: val4}")}},
		"e2e-pachyderm-file":     {vck1alpha1, "the file is outputPath itself", []string{vckVolume("vol1", "Pachyderm", 1, vckPach+`, inputPath: "s3/test"`)}},
		"e2e-pachyderm":          {vck1alpha1, "all below inputPath is in the folder outputPath", []string{vckVolume("vol1", "Pachyderm", 1, vckPach+`, inputPath: "s3/"`)}},
		"e2e-pachyderm-timeout":  {vck1alpha1, "the same, in time", []string{vckVolume("vol1", "Pachyderm", 1, vckPach+`, inputPath: "s3/", timeoutForDataDownload: 10s`)}},
		"stored-s3":              {vck1alpha1, "one node has the file, from Amazon", []string{vckVolume("vol1", "S3", 1, vckTar0+`, EndpointURL: "https://s3.amazonaws.com", dataPath: /var/datasets`)}},
		"stored-pachyderm":       {vck1alpha1, "all below inputPath is in the folder outputPath", []string{vckVolume("vol1", "Pachyderm", 1, vckPach+`, inputPath: "s3/", recursive: "-r", dataPath: /var/datasets, pachydermServiceAddress: "pachd.default.svc:650"`)}},
		"stored-words":           {vck1alpha1, "two nodes have the file, and nothing is uploaded", []string{vckVolume("vol1", "S3", 2, vckTar+`, resync: "false"`)}},
		"stored-words-of-resync": {vck1alpha1, "one node has it, and what pods change is uploaded", []string{vckVolume("vol1", "S3", 1, vckTar+`, resync: "True"`)}},
	}
}

// testVCK applies every manifest that VCK published: its examples, those in its documents, and those of
// its end-to-end tests.
func (k *kubelets) testVCK(t *testing.T) {
	s := k.namespace(t, "vck")
	runs := examplesOfVCK()
	maps.Copy(runs, testsOfVCK())
	var manifests []string
	for name, run := range runs {
		manifests = append(manifests, s.moved(run.api, name, run.volumes...))
	}
	require.NoError(t, s.apply(t, strings.Join(manifests, "---\n")))
	for name, run := range runs {
		got := s.status(name, flexlvmv1.StateRunning, "success")
		require.Equal(t, "successfully deployed all sub-resources", got.Message, "%s: %s", name, run.expect)
		require.Len(t, got.Volumes, len(run.volumes), "%s: %s", name, run.expect)
		for _, v := range got.Volumes {
			require.Equal(t, "success", v.Message, "%s: %s", name, run.expect)
			require.NotNil(t, v.VolumeSource.PersistentVolumeClaim, name)
		}
	}
	k.testLoadersOfVCK(t, s)
	k.testPodsOfVCK(t, s)
	k.testMirror(t, s)
	k.testRefusedOfVCK(t, s)
	k.kubectl(t, "delete", "vm", "--all", "-n", s.name, "--timeout=8m")
	s.nothingLeft()
}

// testLoadersOfVCK checks that the fields of each manifest keep their meaning.
func (k *kubelets) testLoadersOfVCK(t *testing.T, s *space) {
	// The second of two volumes with the same id is served, too, and the status gives its other name.
	two := s.get("example-s3-two").Status
	require.Equal(t, "vol1", two.Volumes[0].ID)
	require.Equal(t, "example-s3-two-vol1-n2", two.Volumes[1].VolumeSource.PersistentVolumeClaim.ClaimName)
	require.Contains(t, advice(two), `"vol1" is already used by an earlier volume of the spec, so its claim and its status entry are named "vol1-n2"`)
	require.Empty(t, advice(s.get("example-s3").Status))
	require.Len(t, s.labelled("example-s3-replicas"), 3)
	require.Len(t, s.labelled("guide-distribution"), 4)
	loader := func(job string) string { return strings.Join(containerOf(s.job(job)).Args, " ") }
	for _, name := range []string{"example-minio", "example-minio-before"} {
		require.Contains(t, loader(name+"-vol1-0"), "--endpoint=minio-svc.default:9000", "the loader finds out what it speaks")
	}
	require.Contains(t, loader("e2e-distribution-vol1-0"), "--path=*cifar*")
	for replica, args := range []string{"--path=*0_1* --elsewhere=*1_1*", "--path=*0_1* --elsewhere=*1_1*", "--path=*1_1* --elsewhere=*0_1*", "--path=*1_1* --elsewhere=*0_1*"} {
		require.Contains(t, loader(fmt.Sprintf("guide-distribution-vol1-%d", replica)), args)
	}
	require.True(t, strings.HasSuffix(loader("guide-distribution-vol1-0"), "s3://foo/bar/ /data"))
	require.Contains(t, loader("e2e-pachyderm-file-vol1-0"), "--anonymous --endpoint=http://pachd.default.svc:30600 --name=test")
	require.True(t, strings.HasSuffix(loader("example-pachyderm-vol1-0"), "pachyderm://test@master/s3/test /data"))
	require.True(t, strings.HasSuffix(loader("stored-pachyderm-vol1-0"), "pachyderm://test@master/s3/ /data/test"))
	require.Contains(t, loader("e2e-pachyderm-timeout-vol1-0"), "--timeout=10s")
	require.NotContains(t, loader("stored-s3-vol1-0"), "--endpoint")
	require.EqualValues(t, 1, s.get("e2e-nfs").Status.Volumes[0].ReadyReplicas)
	require.EqualValues(t, 3, s.get("example-nfs-replicas").Status.Volumes[0].ReadyReplicas)
}

// testPodsOfVCK checks that a pod and a Deployment with the affinity and the volume from the status, as
// VCK's guide says, are scheduled to the data.
func (k *kubelets) testPodsOfVCK(t *testing.T, s *space) {
	const spec = `{affinity: {nodeAffinity: %s}, volumes: [%s], containers: [{name: vck-sleep, image: busybox, command: [/bin/sh], args: ["-c", "sleep 1d"], volumeMounts: [{mountPath: /var/data, name: dataset-claim}]}]}`
	filled := func(vm string) string {
		v := s.get(vm).Status.Volumes[0]
		affinity, err := json.Marshal(v.NodeAffinity)
		require.NoError(t, err)
		source, err := json.Marshal(v.VolumeSource)
		require.NoError(t, err)
		return fmt.Sprintf(spec, affinity, `{"name":"dataset-claim",`+strings.TrimPrefix(string(source), "{"))
	}
	require.NoError(t, s.apply(t, fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: vck-claim-pod, namespace: %s}, spec: %s}", s.name, filled("example-s3"))))
	require.Contains(t, s.labelled("example-s3"), s.nodeOf("vck-claim-pod"))
	require.NoError(t, s.apply(t, fmt.Sprintf("{apiVersion: apps/v1, kind: Deployment, metadata: {name: vck-example-deployment, namespace: %s, labels: {app: vck-example}}, "+
		"spec: {replicas: 2, selector: {matchLabels: {app: vck-example}}, template: {metadata: {labels: {app: vck-example}}, spec: %s}}}", s.name, filled("example-nfs"))))
	pods := &corev1.PodList{}
	await.Until(t, longest, func() string {
		require.NoError(t, k.client.List(t.Context(), pods, client.InNamespace(s.name), client.MatchingLabels{"app": "vck-example"}))
		return await.Missing(len(pods.Items) == 2, "%d pods", len(pods.Items))
	})
	for _, pod := range pods.Items {
		s.nodeOf(pod.Name)
	}
	k.kubectl(t, "delete", "deployment,pod", "vck-example-deployment", "vck-claim-pod", "-n", s.name, "--ignore-not-found", "--timeout=8m")
}

// testRefusedOfVCK checks that manifests for which VCK reported Failed are refused or fail with VCK's
// words.
func (k *kubelets) testRefusedOfVCK(t *testing.T, s *space) {
	for message, volume := range map[string]string{
		"labels cannot be empty":                                with(vckVolume("vol1", "S3", 1, vckTar), "{key1: val1, key2: val2}", "{}"),
		"awsCredentialsSecretName key has to be set in options": vckVolume("vol1", "S3", 1, with(vckTar, "awsCredentialsSecretName: s3-creds, ", "")),
		"replicas cannot be > 1 when resync is set":             vckVolume("vol1", "S3", 2, vckTar+`, resync: "true"`),
		"server has to be set in options":                       with(vckShare0, "server: 10.0.0.1, ", ""),
		"path has to be set in options":                         with(vckShare0, ", path: /", ""),
		"must be of type object":                                with(vckVolume("vol1", "S3", 1, vckTar0), "nodeAffinity: {}", "nodeAffinity: [<insert-node-affinity-here>]"),
		"endpointURL and options.endpointURL differ":            with(kvcTar, "{awsCred", `{endpointURL: "http://other", awsCred`),
	} {
		require.ErrorContains(t, s.apply(t, s.moved(vck1alpha1, "refused", volume)), message)
	}
	require.ErrorContains(t, s.apply(t, s.moved(vck1alpha1, "refused", with(vckShare0, "{key1: val1, key2: val2}", "{}"))), "labels cannot be empty")
	require.ErrorContains(t, s.apply(t, s.moved(vck1alpha1, "refused", vckVolume("vol1", "S3", 1, with(vckTar, "awsCredentialsSecretName: s3-creds, ", "")), vckShare0)), "awsCredentialsSecretName key has to be set in options")

	// A mistake that only a load can find fails with the loader's message.
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus {
		return terminated(1, `{"state":"failed","message":"there is no bucket or object of this name"}`)
	})
	for name, volume := range map[string]string{
		"no-object":   vckVolume("vol1", "S3", 1, with(vckTar, "cifar-100-python.tar.gz", "foobarbaz.gz")+", timeoutForDataDownload: 10s"),
		"no-bucket":   vckVolume("vol1", "S3", 1, with(vckTar, "e2e-test/cifar-100-python.tar.gz", "fake-url")+", timeoutForDataDownload: 10s"),
		"no-endpoint": vckVolume("vol1", "S3", 1, with(vckTar, "http://10.0.0.9:9000", "fake.end.point")+", timeoutForDataDownload: 10s"),
	} {
		require.NoError(t, s.apply(t, s.moved(vck1alpha1, name, volume)))
		got := s.status(name, flexlvmv1.StateFailed, "there is no bucket or object of this name")
		require.Equal(t, "failed to deploy all the sub-resources", got.Message)
	}
	require.NoError(t, s.apply(t, s.moved(vck1alpha1, "no-boolean", vckVolume("vol1", "S3", 1, vckTar+`, resync: foobar`))))
	s.status("no-boolean", flexlvmv1.StateFailed, "error while parsing resync option")
	s.play(s.name, nil)
}

// moved returns a VolumeManager as VCK's client wrote it, changed by the command of docs/from-vck.md.
func (s *space) moved(api, name string, volumes ...string) string {
	s.t.Helper()
	old := fmt.Sprintf("apiVersion: %s\nkind: VolumeManager\nmetadata: {name: %s, namespace: %s, creationTimestamp: null}\nspec:\n  state: Running\n  volumeConfigs:\n  - %s\nstatus: {volumes: null}\n",
		api, name, s.name, strings.Join(volumes, "\n  - "))
	sed := exec.CommandContext(s.t.Context(), "sed", "-E", s.fromVCK("sed -E '"))
	sed.Stdin = strings.NewReader(old)
	out, err := sed.Output()
	require.NoError(s.t, err)
	require.Contains(s.t, string(out), "apiVersion: flexlvm.io/v1\n")
	return string(out)
}

// fromVCK returns the quoted part after begin of a command in docs/from-vck.md.
func (s *space) fromVCK(begin string) string {
	s.t.Helper()
	page, err := os.ReadFile(filepath.Join(s.source, "docs/from-vck.md"))
	require.NoError(s.t, err)
	_, rest, found := strings.Cut(string(page), begin)
	require.True(s.t, found, "docs/from-vck.md has no %q", begin)
	quoted, _, found := strings.Cut(rest, "'")
	require.True(s.t, found)
	return quoted
}

func advice(status flexlvmv1.VolumeManagerStatus) string {
	for _, c := range status.Conditions {
		if c.Type == flexlvmv1.ConditionAdvice && c.Status == metav1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// testMirror checks that consumers' changes are uploaded as long as the volume exists, and once more
// before it is deleted, also if its VolumeManager is deleted.
func (k *kubelets) testMirror(t *testing.T, s *space) {
	const name, claim = "e2e-resync", "e2e-resync-vol1-0"
	await.Until(t, longest, func() string { // the loader's Job is deleted before the mirror's is created
		job := &batchv1.Job{}
		err := k.client.Get(t.Context(), s.key(claim), job)
		return await.Missing(err == nil && job.Labels["flexlvm.io/role"] == "mirror", "no mirror: %v", err)
	})
	args := containerOf(s.job(claim)).Args
	require.Equal(t, []string{"--back", "--", "/data", "s3://e2e-test/cifar-100-python.tar.gz"}, args[len(args)-4:])
	require.Equal(t, claim, s.get(name).Status.Volumes[0].VolumeSource.PersistentVolumeClaim.ClaimName)
	require.Contains(t, s.claims()[claim].Finalizers, "flexlvm.io/mirror")
	s.remove(s.get(name))
	await.Until(t, longest, func() string {
		err := k.client.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: name}, &flexlvmv1.VolumeManager{})
		return await.Missing(err != nil, "it is still there")
	})
	require.NotContains(t, s.claims(), claim)
	require.Contains(t, k.uploads(s.name), "e2e-resync-vol1-put", "it went without a last upload")
}
