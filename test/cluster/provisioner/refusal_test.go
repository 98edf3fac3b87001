//go:build cluster

package provisioner_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// refusals are claims and classes with impossible settings.
var refusals = map[string]struct {
	claim func(*corev1.PersistentVolumeClaim)
	class func(*storagev1.StorageClass)
	event []string
}{
	"block": {
		claim: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr(corev1.PersistentVolumeBlock) },
		event: []string{"volumeMode Block is not supported", "use volumeMode Filesystem"},
	},
	"rwx": {
		claim: func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		},
		event: []string{"ReadWriteMany is not supported", "use ReadWriteOnce"},
	},
	"rwop": {
		claim: func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		},
		event: []string{"ReadWriteOncePod is not supported", "use ReadWriteOnce"},
	},
	"selector": {
		claim: func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		},
		event: []string{"spec.selector is not supported", "leave the selector out"},
	},
	"clone": {
		claim: func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
		},
		event: []string{`dataSource "other": cloning a claim needs layout "thin", and StorageClass "flexlvm" has "linear"`},
	},
	"attributes": {
		claim: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr("gold") },
		event: []string{`volumeAttributesClassName "gold" is not supported`, "leave it out"},
	},
	"huge": {
		claim: func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources = requests("501Ti") },
		event: []string{`"501Ti": is more than 500 TiB`},
	},
	"mount-options": {
		class: func(c *storagev1.StorageClass) { c.MountOptions = []string{"noatime"} },
		event: []string{`mountOptions of StorageClass "bad-mount-options" are not supported`, "create the class again without them"},
	},
	"unknown-parameter": {
		class: func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"replicas": "3"} },
		event: []string{`StorageClass "bad-unknown-parameter": unknown parameter "replicas"; the known ones are volumeGroup, layout,`, "create it again"},
	},
	"bad-group": {
		class: func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"volumeGroup": "../sda"} },
		event: []string{`volumeGroup "../sda": holds '/'`},
	},
	"thin": {
		class: func(c *storagev1.StorageClass) {
			c.Parameters = map[string]string{"layout": "thin", "overprovisionRatio": "0.5"}
		},
		event: []string{`thinPool: is required with layout "thin"`, `overprovisionRatio "0.5": is less than 1`},
	},
	"file-system": {
		class: func(c *storagev1.StorageClass) {
			c.Parameters = map[string]string{"csi.storage.k8s.io/fstype": "btrfs"}
		},
		event: []string{`csi.storage.k8s.io/fstype "btrfs": is not a file system that flexlvm makes; it is xfs or ext4`},
	},
}

func (b *bed) testRefusals(t *testing.T) {
	s := b.namespace(t, "refusals")
	refused := func() (n int) {
		_, err := fmt.Sscan(b.metric(t, 8081, "flexlvm_provisioner_refusals_total"), &n)
		require.NoError(t, err)
		return n
	}
	require.Zero(t, refused())
	for name, r := range refusals {
		class := "flexlvm"
		if r.class != nil {
			class = "bad-" + name
			s.class(class, r.class)
		}
		s.claim(name, func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName = &class
			if r.claim != nil {
				r.claim(c)
			}
		})
		s.pod(name, "")
	}
	for name, r := range refusals {
		parts := append([]string{"ProvisioningFailed"}, r.event...)
		if r.class == nil && name != "huge" { // a node is chosen for it, if not immediately
			parts = append(parts, "Retries will be delayed")
		}
		s.event(s.name, "PersistentVolumeClaim", name, parts...)
	}
	require.Empty(t, s.volumes(t.Context()))

	// A refusal is reported when the volume is requested, and perhaps before that while its pod waits,
	// but not on every resync.
	told := refused()
	require.GreaterOrEqual(t, told, len(refusals))
	require.LessOrEqual(t, told, 2*len(refusals))
	for i := range 3 {
		for name := range refusals {
			_, err := b.client.CoreV1().PersistentVolumeClaims(s.name).Patch(t.Context(), name, types.MergePatchType,
				fmt.Appendf(nil, `{"metadata":{"annotations":{"look":"%d"}}}`, i), metav1.PatchOptions{})
			require.NoError(t, err)
		}
		told += b.caughtUp(t)
	}
	require.Equal(t, told, refused())
	require.Empty(t, s.volumes(t.Context()))
}

// testClassMended: somebody reads the event and creates the class again, and the waiting claim is
// served.
func (b *bed) testClassMended(t *testing.T) {
	s := b.namespace(t, "mended")
	s.class("mended", func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"volumeGruop": "fast"} })
	s.claim("data", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr("mended") })
	s.pod("data", "")
	s.event(s.name, "PersistentVolumeClaim", "data", `unknown parameter "volumeGruop"`)
	require.NoError(t, b.client.StorageV1().StorageClasses().Delete(t.Context(), "mended", metav1.DeleteOptions{}))
	s.class("mended", func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"volumeGroup": "fast"} })
	began := time.Now()
	require.Equal(t, "fast", s.volumeOf("data").Spec.FlexVolume.Options["volumeGroup"])
	t.Logf("bound %.1f s after the class was mended", time.Since(began).Seconds())
}

func (b *bed) testNodeWithoutHostname(t *testing.T) {
	s := b.namespace(t, "hostname")
	label := func(patch string) { b.kubectl(t, "label", "node", "sim-2", "--overwrite", patch) }
	label(corev1.LabelHostname + "-")
	// No capacity is published for such a node, so the scheduler no longer chooses it, and the
	// provisioner has observed that the label is gone.
	b.offered(t, "flexlvm", "sim-2", -1)
	s.claim("data", func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "sim-2"}
	})
	s.pod("data", "sim-2")
	s.event(s.name, "PersistentVolumeClaim", "data", `node "sim-2" has no label kubernetes.io/hostname`, "label the node")
	require.Empty(t, s.volumes(t.Context()))
	label(corev1.LabelHostname + "=" + hostname("sim-2"))
	s.volumeOf("data")
}

// testNodeGone: the scheduler chose a node that no longer exists, and has to choose again.
func (b *bed) testNodeGone(t *testing.T) {
	s := b.namespace(t, "gone")
	s.claim("data", func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "never-there"}
	})
	s.event(s.name, "PersistentVolumeClaim", "data", `node "never-there" is gone from the cluster; the scheduler is asked for another`)
	s.pod("data", "")
	hostnames := s.volumeOf("data").Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values
	require.True(t, slices.Contains([]string{hostname("sim-1"), hostname("sim-2"), hostname(longNode)}, hostnames[0]), hostnames)
}
