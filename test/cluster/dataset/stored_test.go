//go:build cluster

package dataset_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

// definitionOfVCK accepts any content, because VCK's definition had no schema.
const definitionOfVCK = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: volumemanagers.vck.intelai.org}
spec:
  group: vck.intelai.org
  names: {kind: VolumeManager, plural: volumemanagers, singular: volumemanager}
  scope: Namespaced
  versions:
  - {name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// storedOfVCK is a manifest as VCK's controller left it stored, with its own notes among the options.
const storedOfVCK = `
apiVersion: vck.intelai.org/v1alpha1
kind: VolumeManager
metadata: {name: %s, namespace: %s}
spec:
  state: ""
  volumeConfigs:
  - {id: vol1, replicas: 1, sourceType: S3, nodeAffinity: {}, tolerations: null, %s,
     options: {%s, EndpointURL: "https://s3.amazonaws.com", dataPath: /var/datasets}}
  - {id: vol1, replicas: 0, sourceType: NFS, accessMode: ReadWriteMany, capacity: .5Gi, nodeAffinity: {}, tolerations: null, labels: {key3: val3}, options: {server: 10.0.0.1, path: /}}
status:
  message: successfully deployed all sub-resources
  state: Running
  volumes:
  - {id: vol1, message: success, nodeAffinity: {}, volumeSource: {hostPath: {path: /var/datasets/vck-resource-f0e5a3ba}}}
`

// testStored checks that objects that VCK stored, and for which no manifest exists any longer, can be
// read from the cluster and applied as docs/from-vck.md says.
func (k *kubelets) testStored(t *testing.T) {
	s := k.namespace(t, "vck-stored")
	require.NoError(t, s.apply(t, definitionOfVCK))
	stored := func(name string) string {
		return fmt.Sprintf(storedOfVCK, name, s.name, vckHead, vckTar0)
	}
	await.Until(t, longest, func() string {
		err := s.apply(t, stored("one"))
		return await.Missing(err == nil, "it cannot be stored yet: %v", err)
	})
	require.NoError(t, s.apply(t, stored("two")))
	listed := k.kubectl(t, "get", "volumemanagers.vck.intelai.org", "-n", s.name, "-o", "jsonpath="+s.fromVCK("-o jsonpath='"))
	require.NoError(t, s.apply(t, listed))
	for _, name := range []string{"one", "two"} {
		got := s.status(name, flexlvmv1.StateRunning, "success")
		require.Len(t, got.Volumes, 2)
		require.Contains(t, advice(got), `named "vol1-n2"`)
	}
	k.kubectl(t, "delete", "crd", "volumemanagers.vck.intelai.org", "--timeout=8m")
	require.Len(t, s.get("one").Status.Volumes, 2, "the one API does not touch what is of the other")
	s.remove(s.get("one"))
	s.remove(s.get("two"))
	s.nothingLeft()
}
