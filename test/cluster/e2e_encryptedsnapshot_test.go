//go:build cluster

package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// encryptedClass returns a class of encrypted volumes, whose keys are in the Secrets named like their
// claims.
func encryptedClass(name, more string) string {
	return fmt.Sprintf(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: flexlvm.io
volumeBindingMode: WaitForFirstConsumer
parameters:
  door: csi
  encrypted: "true"
  csi.storage.k8s.io/node-publish-secret-name: ${pvc.name}
  csi.storage.k8s.io/node-publish-secret-namespace: ${pvc.namespace}
%s`, name, more)
}

// Databases on an encrypted thin and an encrypted thick volume are snapshotted while they write,
// deleted, and started on the restored volumes, which need their source's key in the new claim's
// Secret. The thick one's class reclaims immediately: its volume is removed with its last snapshot.
func TestSnapshotsOfEncryptedVolumes(t *testing.T) {
	slots.Parallel(t, 140)
	n := snapshotTenant(t, "encrypted-snapshots")
	classes := map[string]string{"sealed-thin": "  layout: thin\n  thinPool: thinpool\n  volumeGroup: " + thinGroup, "sealed-thick": "  reclaim: immediate"}
	setKey := func(claim, key string) {
		n.kubectl("delete", "secret", claim, "--ignore-not-found")
		n.kubectl("create", "secret", "generic", claim, "--from-literal=key="+key)
	}
	key := func(class string) string { return "the key of 32 bytes or more, of the claim " + class }
	before, after, sources := map[string]int64{}, map[string]int64{}, map[string]string{}
	for class, more := range classes {
		setKey(class, key(class))
		require.NoError(t, n.apply(encryptedClass(class, more)+"\n---\n"+claimOf(class, class, "64Mi")+"\n---\n"+database(pod{name: class, claim: class, node: "node1"}, writing)))
	}
	for class := range classes {
		n.ready(class)
		n.untilWritten(class)
		sources[class] = n.kubectl("get", "pvc", class, "-o", "jsonpath={.spec.volumeName}")
		before[class] = n.acknowledged(class)
		require.NoError(t, n.apply(snapshotOf(class)))
	}
	for class := range classes {
		n.kubectl("wait", "volumesnapshot/of-"+class, "--for=jsonpath={.status.readyToUse}=true", patiently)
		after[class] = n.acknowledged(class)
		n.kubectl("delete", "pod", class)
		n.kubectl("delete", "pvc", class)
		n.kubectl("delete", "secret", class)
	}
	restored := func(class string) string { return class + "-restored" }
	for class := range classes {
		n.kubectl("wait", "pv/"+sources[class], "--for=delete", patiently)
		setKey(restored(class), "another key of 32 bytes or more, of somebody")
		require.NoError(t, n.apply(claimOf(class, restored(class), "64Mi", "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: of-"+class+"}")+
			"\n---\n"+database(pod{name: restored(class), claim: restored(class)}, "")))
	}
	for class := range classes {
		n.told(restored(class), "FailedMount", "is wrong, and nothing was changed")
		setKey(restored(class), key(class))
	}
	n.untilKept(sources["sealed-thick"])
	for class := range classes {
		// Kubelet's attempts time out after two minutes, with up to two minutes between them.
		n.kubectl("wait", "--for=condition=Ready", "pod/"+restored(class), "--timeout=600s")
		held := n.requireKeys(restored(class), before[class], after[class])
		n.kubectl("delete", "volumesnapshot", "of-"+class, patiently)
		require.Equal(t, held, n.keys(restored(class)))
		n.kubectl("delete", "pod", restored(class))
		n.kubectl("delete", "pvc", restored(class))
	}
	await.Until(t, patience, func() string {
		left := n.thickVolumes()
		return await.Missing(!strings.Contains(left, sources["sealed-thick"]), "the source stays, whose last snapshot is gone: %s", left)
	})
	n.kubectl("delete", "storageclass", "sealed-thin", "sealed-thick")
}
