package provision_test

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const secret = "csi.storage.k8s.io/node-"

// encrypted returns a request for an encrypted class with these additional parameters; "-" removes one.
func encrypted(parameters map[string]string) provision.Request {
	return provision.Request{PVName: pvName, Claim: claim(nil), Cluster: ledgertest.Cluster, Class: class(func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{
			"encrypted": "true", "door": "csi", secret + "publish-secret-name": "disk-key", secret + "publish-secret-namespace": "keys",
		}
		maps.Copy(c.Parameters, parameters)
		maps.DeleteFunc(c.Parameters, func(_, value string) bool { return value == "-" })
	})}
}

func TestSecretsOfEncryptedVolumes(t *testing.T) {
	ref := func(namespace, name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: namespace, Name: name}
	}
	for name, tt := range map[string]struct {
		parameters      map[string]string
		publish, expand *corev1.SecretReference
	}{
		"one for all": {nil, ref("keys", "disk-key"), ref("keys", "disk-key")},
		"one a claim": {
			map[string]string{secret + "publish-secret-name": "${pvc.namespace}.${pvc.name}"},
			ref("keys", "team-a.data"), ref("keys", "team-a.data"),
		},
		"the tenant's": {
			map[string]string{secret + "publish-secret-name": "${pv.name}-key", secret + "publish-secret-namespace": "${pvc.namespace}"},
			ref("team-a", pvName+"-key"), ref("team-a", pvName+"-key"),
		},
		"another for growth": {
			map[string]string{secret + "expand-secret-name": "${pvc.name}", secret + "expand-secret-namespace": "others"},
			ref("keys", "disk-key"), ref("others", "data"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			request := encrypted(tt.parameters)
			spec, parameters, err := request.Check()
			require.NoError(t, err)
			require.True(t, spec.Encrypted)
			got := request.PersistentVolume(spec, parameters, provision.Node{Name: "node-1", Hostname: "host-1"})
			require.Equal(t, tt.publish, got.Spec.CSI.NodePublishSecretRef)
			require.Equal(t, tt.expand, got.Spec.CSI.NodeExpandSecretRef)
			require.Nil(t, got.Spec.CSI.NodeStageSecretRef)
			require.Equal(t, "true", got.Spec.CSI.VolumeAttributes["encrypted"])
			_, err = persistentvolume.Parse(got)
			require.NoError(t, err)
		})
	}
	plain := encrypted(map[string]string{"encrypted": "false", secret + "publish-secret-name": "-", secret + "publish-secret-namespace": "-"})
	spec, parameters, err := plain.Check()
	require.NoError(t, err)
	got := plain.PersistentVolume(spec, parameters, provision.Node{Name: "node-1", Hostname: "host-1"})
	require.Nil(t, got.Spec.CSI.NodePublishSecretRef)
	require.NotContains(t, got.Spec.CSI.VolumeAttributes, "encrypted")
}

// The charge of an encrypted raw block volume includes its LUKS header.
func TestEncryptedBlock(t *testing.T) {
	r := encrypted(nil)
	asBlock(r.Claim)
	spec, parameters, err := r.Check()
	require.NoError(t, err)
	object := r.PersistentVolume(spec, parameters, provision.Node{Name: "node-1", Hostname: "host-1"})
	require.Equal(t, "disk-key", object.Spec.CSI.NodePublishSecretRef.Name)
	require.Equal(t, "true Block", object.Spec.CSI.VolumeAttributes["encrypted"]+" "+object.Spec.CSI.VolumeAttributes["volumeMode"])
	require.Equal(t, decimal(volume.LUKSHeader+spec.Size.RoundUp(volume.DefaultExtent)), object.Annotations["flexlvm.io/charged-bytes"])
}

func TestEncryptedClassesThatAreRefused(t *testing.T) {
	for says, parameters := range map[string]map[string]string{
		`encrypted needs door "csi": kubelet would pass the key to a FlexVolume driver in its arguments`:     {"door": "flex"},
		`encrypted "yes": is neither true nor false`:                                                         {"encrypted": "yes"},
		`encrypted: needs ` + secret + `publish-secret-name and ` + secret + `publish-secret-namespace`:      {secret + "publish-secret-name": "-"},
		`belong to classes with encrypted "true"`:                                                            {"encrypted": "-"},
		`publish-secret-name "${pvc.annotations['x']}": holds a placeholder that is not known; there are ${`: {secret + "publish-secret-name": "${pvc.annotations['x']}"},
		`publish-secret-namespace "${pvc.name}": holds a placeholder that is not known; there are ${pv.name}, ${pvc.namespace}`: {
			secret + "publish-secret-namespace": "${pvc.name}",
		},
		`publish-secret-name "${pvc.name": holds a placeholder`:         {secret + "publish-secret-name": "${pvc.name"},
		`publish-secret-name: is empty; name the Secret`:                {secret + "publish-secret-name": ""},
		`belong together; give both, or none for those of mounts`:       {secret + "expand-secret-name": "other"},
		`the Secret of StorageClass flexlvm "Upper": cannot be the nam`: {secret + "publish-secret-name": "Upper"},
		`the Secret for growth of StorageClass flexlvm "a/b": is not`:   {secret + "expand-secret-name": "x", secret + "expand-secret-namespace": "a/b"},
		`namespace "kube-system" is not for keys`:                       {secret + "publish-secret-namespace": "kube-system"},
		`encrypted: is not supported with kind "dataset"`:               {"kind": "dataset"},
		`trim "daily": does nothing with encrypted "true", which passes no discards on: they would show on the disk which blocks are free; use "never", or leave it out`: {
			"trim": "daily",
		},
		`trim "weekly": does nothing with encrypted`:                    {"trim": "weekly"},
		`unknown parameter "csi.storage.k8s.io/node-stage-secret-name"`: {secret + "stage-secret-name": "x"},
	} {
		_, _, err := encrypted(parameters).Check()
		require.ErrorContains(t, err, says)
	}
	byDefault := encrypted(map[string]string{"door": "-"})
	_, _, err := byDefault.Check()
	require.ErrorContains(t, err, "encrypted needs door")
	byDefault.Door = pv.CSI
	_, _, err = byDefault.Check()
	require.NoError(t, err)
	for _, trim := range []string{"auto", "never"} {
		_, _, err = encrypted(map[string]string{"trim": trim}).Check()
		require.NoError(t, err, trim)
	}
}
