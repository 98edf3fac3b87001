//go:build cluster

package gc_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/test/await"
)

const declaredGroup = `
apiVersion: flexlvm.io/v1
kind: VolumeGroup
metadata: {name: declared}
spec:
  nodeSelector: {matchLabels: {flexlvm.io/disks: local}}
  name: declared
  disks: [{byID: "serial-blank-*"}]
  extend: true
`

// The manifests of the group on a file and its class.
const declaredLoop = `
apiVersion: flexlvm.io/v1
kind: VolumeGroup
metadata: {name: loop}
spec:
  nodeSelector: {matchLabels: {flexlvm.io/tests: "true"}}
  name: loop
  loop: {file: /var/lib/flexlvm-loop.img, size: 700Mi, forTests: CONSENT}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: loop}
provisioner: flexlvm.io
volumeBindingMode: WaitForFirstConsumer
parameters: {volumeGroup: loop, reclaim: immediate}
`

const localVolume = `
apiVersion: flexlvm.io/v1
kind: LocalVolume
metadata: {name: NAME, namespace: NAMESPACE}
spec: {nodeName: NODE, storageClassName: loop, size: 64Mi, parameters: {fsType: ext4}}
`

// testDeclaredVolumes: a group on a file is created only with consent. Volumes in it are created before
// their claims. One gets its claim and its pod, and the other one is deleted.
func (b *bed) testDeclaredVolumes(t *testing.T) {
	refused := b.denied(t, strings.Replace(declaredLoop, "CONSENT", "false", 1))
	require.Contains(t, refused, "a volume group on a file is only for trials and tests")
	b.apply(t, strings.Replace(declaredLoop, "CONSENT", "true", 1))
	b.kubectl(t, "label", "node", node, "flexlvm.io/tests=true")
	b.kubectl(t, "annotate", "volumegroup", "loop", "looked=again")
	group := b.declaredState(t, func(g v1.DeclaredGroup) bool { return g.Name == "loop" && g.State == v1.DeclaredMade })
	require.Contains(t, group.Disks[0].Path, "/dev/loop")
	b.say(t, "made on a file")

	s := b.space(t, "local")
	for _, name := range []string{"data", "spare"} {
		b.apply(t, strings.NewReplacer("NAMESPACE", "local", "NAME", name, "NODE", node).Replace(localVolume))
	}
	ready := func(name, reason string) {
		t.Helper()
		await.Until(t, longest, func() string {
			is := b.kubectl(t, "get", "localvolume", "-n", "local", name, "-o", `jsonpath={.status.conditions[0].reason}: {.status.conditions[0].message}`)
			return await.Missing(strings.HasPrefix(is, reason+":"), "it says %s", is)
		})
	}
	ready("data", v1.LocalVolumeMade)
	ready("spare", v1.LocalVolumeMade)
	made := strings.Fields(b.onNode(t, "lvs --noheadings -o lv_tags loop"))
	require.Len(t, made, 2)
	for _, tags := range made {
		require.Contains(t, tags, "flexlvm.state=ready")
	}
	b.say(t, "made before any claim is there")

	refused = b.denied(t, strings.NewReplacer("NAMESPACE", "local", "NAME", "data", "NODE", node, "64Mi", "128Mi").Replace(localVolume))
	require.Contains(t, refused, "spec cannot be changed")
	s.claimOf("loop", "data", "64Mi")
	s.pod("data", "data")
	s.running("data")
	sum := s.sums("data")
	ready("data", v1.LocalVolumeBound)
	b.kubectl(t, "delete", "localvolume", "-n", "local", "--wait=false", "--all")
	ready("data", v1.LocalVolumeInUse)
	await.Until(t, longest, func() string {
		left := b.kubectl(t, "get", "localvolume", "-n", "local", "-o", "name")
		return await.Missing(strings.TrimSpace(left) == "localvolume.flexlvm.io/data", "left: %s", left)
	})
	require.Equal(t, sum, s.sums("data"))
	b.say(t, "the one that nobody has is given up")
}

// denied returns the error of kubectl apply of manifests.
func (b *bed) denied(t *testing.T, manifests string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	out, err := b.KubectlInput(ctx, strings.NewReader(manifests), "apply", "-f", "-")
	require.Error(t, err, manifests)
	return out + err.Error()
}

// declaredState waits until the node's report of the declared group matches, and returns it.
func (b *bed) declaredState(t *testing.T, fits func(v1.DeclaredGroup) bool) (out v1.DeclaredGroup) {
	t.Helper()
	await.Until(t, longest, func() string {
		groups := b.storage(t).DeclaredGroups
		if len(groups) == 1 {
			out = groups[0]
		}
		return await.Missing(len(groups) == 1 && fits(out), "it says %+v", groups)
	})
	return out
}

// testDeclaredGroups: one of two disks with serial numbers has a file system. The group is created on
// the other one, a pod gets a volume in it, and the refused disk is reported with the reason. When that
// disk is wiped, it is added to the group. Nothing is removed with the declaration.
func (b *bed) testDeclaredGroups(t *testing.T) {
	device := func(serial string) string {
		return strings.TrimSpace(b.onNode(t, `for f in /sys/block/*/serial; do
			if [ "$(cat $f)" = `+serial+` ]; then basename $(dirname $f); fi; done`))
	}
	full := "/dev/" + device("blank-2")
	b.onNode(t, "mkfs.xfs -q "+full)
	b.apply(t, declaredGroup)
	b.looksTwice(t)
	require.Empty(t, b.storage(t).DeclaredGroups, "the node is not selected")
	b.kubectl(t, "label", "node", node, "flexlvm.io/disks=local")
	b.kubectl(t, "annotate", "volumegroup", "declared", "looked=again")

	group := b.declaredState(t, func(g v1.DeclaredGroup) bool { return g.State == v1.DeclaredMade })
	require.Len(t, group.Disks, 1)
	require.Equal(t, "serial-blank-1", group.Disks[0].ID)
	require.Len(t, group.Refused, 1)
	require.Contains(t, group.Refused[0].Reason, "the VolumeDiscovery offered it as a volume before (serial-blank-2)", "of an earlier test")
	b.kubectl(t, "annotate", "volumegroup", "declared", v1.AnnotationTakeAgain+"=serial-blank-2")
	b.declaredState(t, func(g v1.DeclaredGroup) bool {
		return len(g.Refused) == 1 && strings.Contains(g.Refused[0].Reason, "xfs")
	})
	require.Contains(t, b.kubectl(t, "describe", "nodestorage", node), "serial-blank-2")
	b.event(t, "default", "VolumeGroup", "declared", "VolumeGroupMade", "node "+node)
	b.event(t, "default", "Node", node, "VolumeGroupMade", "declared")
	require.Contains(t, b.kubectl(t, "get", "volumegroups"), "declared")
	b.say(t, "made of the blank disk")

	_, err := b.client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "declared"}, Provisioner: pv.Provisioner, Parameters: map[string]string{"volumeGroup": "declared"},
		ReclaimPolicy:     ptr(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: ptr(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	s := b.space(t, "declared")
	s.claimOf("declared", "data", "100Mi")
	s.pod("data", "data")
	s.running("data")
	sum := s.sums("data")
	b.say(t, "a pod has a volume in it")

	b.onNode(t, "wipefs --quiet --all "+full+"; blkdiscard --zeroout "+full)
	b.kubectl(t, "annotate", "volumegroup", "declared", "looked=once-more", "--overwrite")
	group = b.declaredState(t, func(g v1.DeclaredGroup) bool { return len(g.Disks) == 2 })
	require.Equal(t, v1.DeclaredMade, group.State)
	require.Equal(t, "2", strings.TrimSpace(b.onNode(t, "vgs --noheadings -o pv_count declared")))
	b.say(t, "extended by the other disk")

	b.kubectl(t, "delete", "volumegroup", "declared")
	await.Until(t, longest, func() string {
		return await.Missing(len(b.storage(t).DeclaredGroups) == 0, "it is still reported")
	})
	b.looksTwice(t)
	require.Equal(t, "2", strings.TrimSpace(b.onNode(t, "vgs --noheadings -o pv_count declared")))
	require.Equal(t, sum, s.sums("data"))
}
