//go:build cluster

package dataset_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

// Volumes with the fields and values that VCK's published manifests and tests have, and
// values in the places that they leave open.
const (
	vckHead   = "accessMode: ReadWriteOnce, capacity: 5Gi, labels: {key1: val1, key2: val2}"
	vckTar    = `awsCredentialsSecretName: s3-creds, sourceURL: "s3://e2e-test/cifar-100-python.tar.gz", endpointURL: "http://10.0.0.9:9000"`
	vckTar0   = `awsCredentialsSecretName: s3-creds, sourceURL: "s3://neon-stockdatasets/cifar-100-python.tar.gz"`
	vckPach   = `repo: test, branch: master, outputPath: test`
	vckShare  = `{id: vol1, replicas: 1, sourceType: NFS, accessMode: ReadWriteMany, capacity: 5Gi, labels: {key1: val1, key2: val2}, options: {server: 10.0.0.1, path: /x}}`
	vckShare0 = `{id: vol1, replicas: 0, sourceType: NFS, accessMode: ReadWriteMany, capacity: .5Gi, nodeAffinity: {}, tolerations: null, labels: {key1: val1, key2: val2}, options: {server: 10.0.0.1, path: /}}`
)

func vckVolume(id, kind string, replicas int, options string) string {
	return fmt.Sprintf(`{id: %s, replicas: %d, sourceType: %s, nodeAffinity: {}, tolerations: null, %s, options: {%s}}`, id, replicas, kind, vckHead, options)
}

// testVCK applies a manifest for each that VCK published: its examples, those in its
// documents, and those of its end-to-end tests.
func (k *kubelets) testVCK(t *testing.T) {
	s := k.namespace(t, "vck")
	distributed := vckVolume("vol1", "S3", 1, `awsCredentialsSecretName: s3-creds, sourceURL: "s3://e2e-test", endpointURL: "http://10.0.0.9:9000", distributionStrategy: '{"*cifar*": 1}'`)
	inSpec := fmt.Sprintf(`{id: vol2, replicas: 1, sourceType: S3, sourceURL: "s3://neon-stockdatasets/cifar-100-python.tar.gz", %s, options: {awsCredentialsSecretName: s3-creds}}`, vckHead)
	runs := map[string][]string{
		"example-s3":             {vckVolume("vol1", "S3", 1, vckTar0)},
		"example-s3-replicas":    {vckVolume("vol1", "S3", 3, vckTar0)},
		"example-s3-two":         {vckVolume("vol1", "S3", 1, vckTar0), vckVolume("vol1", "S3", 1, with(vckTar0, "neon-stockdatasets/cifar-100-python.tar.gz", "helium-stockdatasets-dev/alexnet.p"))},
		"example-minio":          {vckVolume("vol1", "S3", 1, vckTar0+`, endpointURL: "minio-svc.default:9000"`)},
		"example-nfs":            {vckShare},
		"example-nfs-replicas":   {with(vckShare, "replicas: 1", "replicas: 3")},
		"example-nfs-two":        {vckShare, with(vckShare, "vol1", "vol2")},
		"example-multiple":       {vckShare, inSpec},
		"example-pachyderm":      {vckVolume("vol1", "Pachyderm", 1, `repo: test, branch: master, filePath: s3/test`)},
		"guide-distribution":     {vckVolume("vol1", "S3", 2, `awsCredentialsSecretName: aws-secret, sourceURL: "s3://foo/bar", distributionStrategy: '{"*0_1*": 1, "*1_1*": 1}'`)},
		"e2e-s3":                 {vckVolume("vol1", "S3", 1, vckTar)},
		"e2e-resync":             {vckVolume("vol1", "S3", 1, vckTar+`, resync: "true", timeoutForDataDownload: 20s`)},
		"e2e-distribution":       {distributed},
		"e2e-nfs":                {vckShare0},
		"e2e-multiple":           {vckVolume("vol1", "S3", 1, vckTar), vckShare0},
		"e2e-pachyderm-file":     {vckVolume("vol1", "Pachyderm", 1, vckPach+`, inputPath: "s3/test"`)},
		"e2e-pachyderm":          {vckVolume("vol1", "Pachyderm", 1, vckPach+`, inputPath: "s3/"`)},
		"e2e-pachyderm-timeout":  {vckVolume("vol1", "Pachyderm", 1, vckPach+`, inputPath: "s3/", timeoutForDataDownload: 10s`)},
		"stored-s3":              {vckVolume("vol1", "S3", 1, vckTar0+`, EndpointURL: "https://s3.amazonaws.com", dataPath: /var/datasets`)},
		"stored-pachyderm":       {vckVolume("vol1", "Pachyderm", 1, vckPach+`, inputPath: "s3/", recursive: "-r", dataPath: /var/datasets, pachydermServiceAddress: "pachd.default.svc:650"`)},
		"stored-words":           {vckVolume("vol1", "S3", 2, vckTar+`, resync: "false"`)},
		"stored-words-of-resync": {vckVolume("vol1", "S3", 1, vckTar+`, resync: "True"`)},
	}
	for name, volumes := range runs {
		require.NoError(t, s.apply(t, vck(s.name, name, volumes...)), name)
	}
	for name, volumes := range runs {
		got := s.status(name, flexlvmv1.StateRunning, "success")
		require.Equal(t, "successfully deployed all sub-resources", got.Message, name)
		require.Len(t, got.Volumes, len(volumes), name)
	}
	// The second of two volumes of one id is served, too, and told how it is called.
	two := s.get("example-s3-two").Status
	require.Equal(t, "vol1", two.Volumes[0].ID)
	require.Equal(t, "example-s3-two-vol1-n2", two.Volumes[1].VolumeSource.PersistentVolumeClaim.ClaimName)
	require.Contains(t, advice(two), `"vol1" is that of a volume before it, so its claim and its entry in the status are called after "vol1-n2"`)
	require.Empty(t, advice(s.get("example-s3").Status))
	loader := func(job string) string { return strings.Join(containerOf(s.job(job)).Args, " ") }
	require.Contains(t, loader("example-minio-vol1-0"), "--endpoint=minio-svc.default:9000", "the loader finds out what it speaks")
	require.Contains(t, loader("e2e-distribution-vol1-0"), "--path=*cifar*")
	require.Contains(t, loader("guide-distribution-vol1-0"), "--path=*0_1* --elsewhere=*1_1*")
	require.True(t, strings.HasSuffix(loader("guide-distribution-vol1-0"), "s3://foo/bar/ /data"))
	require.Contains(t, loader("e2e-pachyderm-file-vol1-0"), "--anonymous --endpoint=http://pachd.default.svc:30600 --name=test")
	require.True(t, strings.HasSuffix(loader("stored-pachyderm-vol1-0"), "pachyderm://test@master/s3/ /data/test"))
	require.EqualValues(t, 1, s.get("e2e-nfs").Status.Volumes[0].ReadyReplicas)
	k.testMirror(t, s)

	for message, volume := range map[string]string{
		"labels cannot be empty":                                with(vckVolume("vol1", "S3", 1, vckTar), "{key1: val1, key2: val2}", "{}"),
		"awsCredentialsSecretName key has to be set in options": vckVolume("vol1", "S3", 1, with(vckTar, "awsCredentialsSecretName: s3-creds, ", "")),
		"replicas cannot be > 1 when resync is set":             vckVolume("vol1", "S3", 2, vckTar+`, resync: "true"`),
		"server has to be set in options":                       with(vckShare0, "server: 10.0.0.1, ", ""),
		"path has to be set in options":                         with(vckShare0, ", path: /", ""),
		"must be of type object":                                with(vckVolume("vol1", "S3", 1, vckTar0), "nodeAffinity: {}", "nodeAffinity: [<insert-node-affinity-here>]"),
	} {
		require.ErrorContains(t, s.apply(t, vck(s.name, "refused", volume)), message)
	}
	require.ErrorContains(t, s.apply(t, vck(s.name, "refused", vckVolume("vol1", "S3", 1, with(vckTar, "awsCredentialsSecretName: s3-creds, ", "")), vckShare0)), "awsCredentialsSecretName key has to be set in options")

	// What only a load can find out fails in the loader's words.
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus {
		return terminated(1, `{"state":"failed","message":"there is no bucket or object of this name"}`)
	})
	for name, volume := range map[string]string{
		"no-object":   vckVolume("vol1", "S3", 1, with(vckTar, "cifar-100-python.tar.gz", "foobarbaz.gz")+", timeoutForDataDownload: 10s"),
		"no-bucket":   vckVolume("vol1", "S3", 1, with(vckTar, "e2e-test/cifar-100-python.tar.gz", "fake-url")+", timeoutForDataDownload: 10s"),
		"no-endpoint": vckVolume("vol1", "S3", 1, with(vckTar, "http://10.0.0.9:9000", "fake.end.point")+", timeoutForDataDownload: 10s"),
	} {
		require.NoError(t, s.apply(t, vck(s.name, name, volume)))
		got := s.status(name, flexlvmv1.StateFailed, "there is no bucket or object of this name")
		require.Equal(t, "failed to deploy all the sub-resources", got.Message)
	}
	require.NoError(t, s.apply(t, vck(s.name, "no-boolean", vckVolume("vol1", "S3", 1, vckTar+`, resync: foobar`))))
	s.status("no-boolean", flexlvmv1.StateFailed, "error while parsing resync option")
	s.play(s.name, nil)
	k.kubectl(t, "delete", "vm", "--all", "-n", s.name, "--timeout=120s")
	s.nothingLeft()
}

// vck is a VolumeManager as VCK had it, but for its apiVersion.
func vck(namespace, name string, volumes ...string) string {
	return fmt.Sprintf("apiVersion: flexlvm.io/v1\nkind: VolumeManager\nmetadata: {name: %s, namespace: %s}\nspec:\n  volumeConfigs:\n  - %s\n",
		name, namespace, strings.Join(volumes, "\n  - "))
}

func advice(status flexlvmv1.VolumeManagerStatus) string {
	for _, c := range status.Conditions {
		if c.Type == flexlvmv1.ConditionAdvice && c.Status == metav1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// testMirror: what consumers change is uploaded as long as the volume is there, and once
// more before it goes, also where its VolumeManager is deleted.
func (k *kubelets) testMirror(t *testing.T, s *space) {
	const name, claim = "e2e-resync", "e2e-resync-vol1-0"
	await.Until(t, longest, func() string {
		return await.Missing(s.job(claim).Labels["flexlvm.io/role"] == "mirror", "no mirror: %s", s.what())
	})
	args := containerOf(s.job(claim)).Args
	require.Equal(t, []string{"--back", "--", "/data", "s3://e2e-test/cifar-100-python.tar.gz"}, args[len(args)-4:])
	require.Equal(t, claim, s.get(name).Status.Volumes[0].VolumeSource.PersistentVolumeClaim.ClaimName)
	require.Contains(t, s.claims()[claim].Finalizers, "flexlvm.io/mirror")
	s.remove(s.get(name))
	await.Until(t, longest, func() string {
		err := k.client.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: name}, &flexlvmv1.VolumeManager{})
		return await.Missing(err != nil, "it is still there: %s", s.what())
	})
	require.NotContains(t, s.claims(), claim)
	require.Contains(t, k.uploads(s.name), "e2e-resync-vol1-put", "it went without a last upload")
}
