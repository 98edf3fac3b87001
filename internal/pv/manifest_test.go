package pv

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestQuantity(t *testing.T) {
	for b, want := range map[volume.Bytes]string{
		volume.TiB: "1Ti", 1536 * volume.MiB: "1536Mi", 976564 * volume.KiB: "976564Ki", volume.GiB + 1: "1073741825", 1: "1",
	} {
		require.Equal(t, want, quantity(b))
		parsed := resource.MustParse(want)
		require.Equal(t, int64(b), parsed.Value())
	}
}

func TestSecretsOfAManifest(t *testing.T) {
	m := Manifest{Description: Description{Name: "a", Door: CSI, Spec: volume.Spec{Group: "flexlvm", Name: "a", Size: volume.GiB, Encrypted: true}}}
	require.NotContains(t, m.YAML(), "SecretRef")
	publish, err := ParseSecretRef("--secret", "keys/disk-key")
	require.NoError(t, err)
	m.Secrets = Secrets{Publish: publish, Expand: SecretRef{Namespace: "keys", Name: "other"}}
	require.Contains(t, m.YAML(), `    volumeHandle: "flexlvm/a"
    nodePublishSecretRef:
      name: "disk-key"
      namespace: "keys"
    nodeExpandSecretRef:
      name: "other"
      namespace: "keys"
    volumeAttributes:
`)
	for _, wrong := range []string{"", "key", "/key", "keys/", "Keys/key", "keys/a/b", "keys/Key"} {
		_, err := ParseSecretRef("--secret", wrong)
		require.ErrorContains(t, err, "--secret")
	}
}
