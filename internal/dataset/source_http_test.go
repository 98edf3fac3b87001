package dataset

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

const pinnedArtifact = "oci://r/m:v1@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// All sources that are read over HTTP, except S3 and Pachyderm, name their Secret in credentialsSecretName.
func TestSourcesOfHTTP(t *testing.T) {
	for raw, kind := range map[string]flexlvmv1.SourceType{"https://h:8443/a/list.jsonl?x=1#sha256=0": "HTTP", "http://h/l": "HTTP", "hf://org/na.me@refs%2Fpr%2F1/a/*.json": "HuggingFace", "hf://datasets/org/name": "HuggingFace",
		"oci://r.example.org:5000/org/model:v1": "OCI", "oci://r/m": "OCI", pinnedArtifact: "OCI",
		"gs://bkt/p/": "GCS", "azblob://acc/con/a/*.csv": "AzureBlob"} {
		s, err := ParseSource(volumeOf(kind, 2, options{"sourceURL": flexlvmv1.OptionValue(raw), "credentialsSecretName": "s", "include": "*.bin", "evictionPolicy": "LRU"}))
		require.NoError(t, err, raw)
		require.Equal(t, raw, s.URL)
		require.Equal(t, "s", s.Secret)
		require.Equal(t, []string{"--include=*.bin"}, s.Flags)
		require.Empty(t, s.Access)
		require.False(t, s.Writable())
	}
}

// The claim of a PVC source is mounted read-only at a path of its own, and copied from there.
func TestClaimIsCopied(t *testing.T) {
	for path, url := range map[flexlvmv1.OptionValue]string{"": "file:///source/", "/": "file:///source/", "sets/a/": "file:///source/sets/a/", "../../etc": "file:///source/etc/"} {
		s, err := ParseSource(volumeOf("PVC", 1, options{"claimName": "share", "path": path, "exclude": "*.tmp"}))
		require.NoError(t, err)
		require.Equal(t, url, s.URL)
		other, err := ParseSource(volumeOf("PVC", 1, options{"claimName": "other", "path": path, "exclude": "*.tmp"}))
		require.NoError(t, err)
		require.NotEqual(t, s.Load(0), other.Load(0), "another claim has other data")
	}
	stage := newStage(t, func(v *flexlvmv1.VolumeConfig) {
		v.SourceType, v.Options = "PVC", options{"claimName": "share", "path": "sets"}
	})
	pod := stage.task(1, stage.claimed(1).Claim).load().Spec.Template.Spec
	require.Len(t, pod.Volumes, 2)
	require.Equal(t, &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "share", ReadOnly: true}, pod.Volumes[1].PersistentVolumeClaim)
	require.Equal(t, corev1.VolumeMount{Name: "source", MountPath: "/source", ReadOnly: true}, pod.Containers[0].VolumeMounts[1])
	args := pod.Containers[0].Args
	require.Equal(t, []string{"--", "file:///source/sets/", "/data"}, args[len(args)-3:])
}

// A mirror server has the same data, so it does not change the digest.
func TestMirrorsHaveTheSame(t *testing.T) {
	for kind, url := range map[flexlvmv1.SourceType]flexlvmv1.OptionValue{"HuggingFace": "hf://org/name", "OCI": "oci://r/m"} {
		load := func(o options) (Source, string) {
			o["sourceURL"] = url
			s, err := ParseSource(volumeOf(kind, 1, o))
			require.NoError(t, err)
			return s, s.Load(0)
		}
		_, here := load(options{})
		s, there := load(options{"endpointURL": "https://mirror", "anonymous": "true", "credentialsSecretName": "s"})
		require.Equal(t, here, there)
		require.Equal(t, []string{"--endpoint=https://mirror", "--anonymous"}, s.Access)
		require.Empty(t, s.Secret)
	}
}

var addressesWithPasswords = []string{"https://user:hunter2@h", "https://hunter2@h", "user:hunter2@h:30600", "user:hunter2@h", "hunter2@h", "https://user:hunter2/x@h"}

// The error about an endpoint appears in the status and in events, so it must not contain the password.
func TestPasswordOfEndpoint(t *testing.T) {
	for _, option := range []string{"endpointURL", "EndpointURL"} {
		for _, address := range addressesWithPasswords {
			_, err := ParseSource(volumeOf("S3", 1, s3Options(options{option: flexlvmv1.OptionValue(address)})))
			require.ErrorContains(t, err, option+" holds a password", address)
			require.NotContains(t, err.Error(), "hunter2")
		}
	}
}

func TestPasswordOfPachyderm(t *testing.T) {
	for _, address := range addressesWithPasswords {
		s, err := ParseSource(volumeOf("Pachyderm", 1, options{
			"repo": "r", "branch": "b", "inputPath": "/", "outputPath": "/", "pachydermServiceAddress": flexlvmv1.OptionValue(address),
		}))
		require.ErrorContains(t, err, "pachydermServiceAddress holds a password", address)
		require.NotContains(t, err.Error(), "hunter2")
		require.Empty(t, s.Access)
	}
}
