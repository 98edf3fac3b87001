package provision_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	claimUID = "0d5b7d52-93cb-4a87-a8a6-6d2ffb7f5c0e"
	pvName   = "pvc-" + claimUID
)

func ptr[T any](v T) *T { return &v }

func claim(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "team-a", UID: types.UID(claimUID)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
			VolumeMode: ptr(corev1.PersistentVolumeFilesystem),
		},
	}
	if change != nil {
		change(c)
	}
	return c
}

func class(change func(*storagev1.StorageClass)) *storagev1.StorageClass {
	c := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: "flexlvm"},
		Provisioner:       "flexlvm.io",
		VolumeBindingMode: ptr(storagev1.VolumeBindingWaitForFirstConsumer),
		ReclaimPolicy:     ptr(corev1.PersistentVolumeReclaimDelete),
	}
	if change != nil {
		change(c)
	}
	return c
}

func sized(quantity string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(quantity)
	}
}

func TestCheckRefuses(t *testing.T) {
	tests := map[string]struct {
		claim func(*corev1.PersistentVolumeClaim)
		class func(*storagev1.StorageClass)
		err   string
	}{
		"block": {
			claim: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr(corev1.PersistentVolumeBlock) },
			err:   "volumeMode Block is not supported: the kubelet gives pods no devices through FlexVolume drivers; use volumeMode Filesystem, or a class with door: csi",
		},
		"shared between nodes": {
			claim: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany}
			},
			err: "access mode ReadWriteMany is not supported: the volume lives on the disk of one node; use ReadWriteOnce, which lets any number of pods on that node share it",
		},
		"one pod only": {
			claim: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
			},
			err: "access mode ReadWriteOncePod is not supported: the kubelet cannot enforce it for FlexVolumes; use ReadWriteOnce, or a class with door: csi",
		},
		"a mode of the future": {
			claim: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{"ReadWriteTwice"}
			},
			err: "access mode ReadWriteTwice is not supported; use ReadWriteOnce or ReadOnlyMany",
		},
		"selector": {
			claim: func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} },
			err:   "spec.selector is not supported: a new volume has no labels to select by; leave the selector out, or name an existing PersistentVolume in spec.volumeName",
		},
		"data source": {
			claim: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
			},
			err: `dataSource "other": cloning a claim needs layout "thin", and StorageClass "flexlvm" has "linear"; take a VolumeSnapshot of that claim, which needs the CSI driver, and name it`,
		},
		"data source of a group": {
			claim: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: ptr("example.com"), Kind: "PersistentVolumeClaim", Name: "other"}
			},
			class: thinly,
			err:   `the data source PersistentVolumeClaim "other" is not supported: flexlvm makes empty volumes, and copies of PersistentVolumeClaims and VolumeSnapshots; leave dataSource and dataSourceRef out`,
		},
		"data source in another namespace": {
			claim: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "other", Namespace: ptr("team-b")}
			},
			class: thinly,
			err:   `dataSourceRef.namespace "team-b": is not the claim's own; only a claim of namespace "team-a" can be copied`,
		},
		"data source is itself": {
			claim: cloning("data"),
			class: thinly,
			err:   `dataSource "data": is the claim itself; name the claim that it is to be a copy of`,
		},
		"data source reference": {
			claim: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "VolumeSnapshot", Name: "monday"}
			},
			class: thinly,
			err:   `the data source VolumeSnapshot "monday" is not supported: flexlvm makes empty volumes, and copies of PersistentVolumeClaims and VolumeSnapshots; leave dataSource and dataSourceRef out`,
		},
		"attributes class": {
			claim: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = ptr("gold") },
			err:   `volumeAttributesClassName "gold" is not supported: FlexVolumes cannot have any; leave it out, and set the limits in the class, or in the annotation flexlvm.io/io-limits of the PersistentVolume, or use a class with door: csi`,
		},
		"no size": {
			claim: func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil },
			err:   "spec.resources.requests.storage: must be greater than 0",
		},
		"negative size": {
			claim: sized("-1Gi"),
			err:   "spec.resources.requests.storage: must be greater than 0",
		},
		"size beyond sense": {
			claim: sized("501Ti"),
			err:   `spec.resources.requests.storage "501Ti": is more than 500 TiB, the most that is supported`,
		},
		"size beyond 64 bits": {
			claim: sized("100E"),
			err:   `spec.resources.requests.storage "100E": is more than 500 TiB, the most that is supported`,
		},
		"limit inside the last block": {
			claim: func(c *corev1.PersistentVolumeClaim) {
				sized("1000")(c)
				c.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1000")}
			},
			err: `spec.resources.limits.storage "1k": is less than the request in whole blocks of 4 KiB, which is 4096; raise it`,
		},
		"mount options": {
			class: func(c *storagev1.StorageClass) { c.MountOptions = []string{"noatime"} },
			err:   `mountOptions of StorageClass "flexlvm" are not supported: FlexVolumes cannot have any; create the class again without them, or with door: csi`,
		},
		"parameters": {
			class: func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"fsType": "zfs"} },
			err:   `StorageClass "flexlvm": fsType "zfs": is not a file system that flexlvm makes; it is xfs or ext4; a class cannot be changed, create it again`,
		},
		"names too long together": {
			class: func(c *storagev1.StorageClass) {
				c.Parameters = map[string]string{"volumeGroup": strings.Repeat("g", 100)}
			},
			err: `volume "` + pvName + `": is too long together with volume group "` + strings.Repeat("g", 100) + `": device-mapper would need 153 characters and has 127; use a shorter name`,
		},
		"all at once": {
			claim: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.VolumeMode = ptr(corev1.PersistentVolumeBlock)
				sized("1Pi")(c)
			},
			err: "volumeMode Block is not supported: the kubelet gives pods no devices through FlexVolume drivers; use volumeMode Filesystem, or a class with door: csi; " +
				`spec.resources.requests.storage "1Pi": is more than 500 TiB, the most that is supported`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			request := provision.Request{PVName: pvName, Claim: claim(tt.claim), Class: class(tt.class), Cluster: ledgertest.Cluster}
			_, _, err := request.Check()
			require.EqualError(t, err, tt.err)
			require.IsType(t, &controlplane.Refusal{}, err)
			require.Less(t, len(err.Error()), 900, "an event carries 1024 characters")
		})
	}
}

func TestPersistentVolume(t *testing.T) {
	request := provision.Request{
		PVName: pvName,
		Claim: claim(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteOnce}
		}),
		Class: class(func(c *storagev1.StorageClass) {
			c.ReclaimPolicy = ptr(corev1.PersistentVolumeReclaimRetain)
			c.Parameters = map[string]string{"volumeGroup": "fast", "inodes": "5000", "wipe": "zero"}
		}),
		Cluster: ledgertest.Cluster,
	}
	spec, parameters, err := request.Check()
	require.NoError(t, err)
	got := request.PersistentVolume(spec, parameters, provision.Node{Name: "node-1", Hostname: "host-1"})

	capacity := got.Spec.Capacity[corev1.ResourceStorage]
	require.Equal(t, "1Gi", capacity.String())
	got.Spec.Capacity = nil
	require.Equal(t, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:       pvName,
			Labels:     map[string]string{"flexlvm.io/node": "node-1"},
			Finalizers: []string{"flexlvm.io/volume"},
			Annotations: map[string]string{
				"flexlvm.io/charged-bytes": decimal(volume.XFSDeviceSize(volume.GiB, 5000)),
				"flexlvm.io/reclaim":       "lazy",
				"flexlvm.io/wipe":          "zero",
				"flexlvm.io/on-node-loss":  "keep",
			},
		},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			VolumeMode:                    ptr(corev1.PersistentVolumeFilesystem),
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kubernetes.io/hostname", Operator: "In", Values: []string{"host-1"}}},
			}}}},
			PersistentVolumeSource: corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{
				Driver: "flexlvm.io/flexlvm",
				FSType: "xfs",
				Options: map[string]string{
					"volumeGroup": "fast",
					"size":        "1073741824",
					"layout":      "linear",
					"inodes":      "5000",
					"clusterUID":  ledgertest.Cluster,
					"kind":        "claim",
				},
			}},
		},
	}, got)
}

// Claims and classes have more options with CSI volumes.
func TestPersistentVolumeOfCSI(t *testing.T) {
	once := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	}
	options := func(parameters map[string]string, mount ...string) *storagev1.StorageClass {
		return class(func(c *storagev1.StorageClass) { c.Parameters, c.MountOptions = parameters, mount })
	}
	for name, request := range map[string]provision.Request{
		"by the class":       {Class: options(map[string]string{"door": "csi", "volumeGroup": "fast"}, "noatime", "noexec")},
		"by the provisioner": {Door: pv.CSI, Class: options(map[string]string{"volumeGroup": "fast"}, "noatime", "noexec")},
	} {
		t.Run(name, func(t *testing.T) {
			request.PVName, request.Claim, request.Cluster = pvName, claim(once), ledgertest.Cluster
			spec, parameters, err := request.Check()
			require.NoError(t, err)
			got := request.PersistentVolume(spec, parameters, provision.Node{Name: "node-1", Hostname: "host-1"})
			require.Equal(t, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}, got.Spec.AccessModes)
			require.Equal(t, []string{"noatime", "noexec"}, got.Spec.MountOptions)
			require.Equal(t, corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "flexlvm.io", FSType: "xfs", VolumeHandle: "fast/" + pvName,
				VolumeAttributes: map[string]string{
					"volumeGroup": "fast", "size": "1073741824", "layout": "linear", "clusterUID": ledgertest.Cluster, "kind": "claim",
					"namespace": request.Claim.Namespace,
				},
			}}, got.Spec.PersistentVolumeSource)
		})
	}
	for says, request := range map[string]provision.Request{
		`mountOptions of StorageClass "flexlvm" "discard": is not a mount option`: {Door: pv.CSI, Class: options(nil, "discard")},
		"ReadWriteOncePod is not supported":                                       {Door: pv.CSI, Class: options(map[string]string{"door": "flex"})},
		`door "back": is not known; it is one of flex, csi`:                       {Door: pv.CSI, Class: options(map[string]string{"door": "back"})},
	} {
		request.PVName, request.Claim, request.Cluster = pvName, claim(once), ledgertest.Cluster
		_, _, err := request.Check()
		require.ErrorContains(t, err, says)
	}
}

func TestIOLimits(t *testing.T) {
	request := provision.Request{
		PVName: pvName, Claim: claim(nil), Cluster: ledgertest.Cluster,
		Class: class(func(c *storagev1.StorageClass) {
			c.Parameters = map[string]string{"writeBps": "2Mi", "readIops": "100"}
		}),
	}
	spec, parameters, err := request.Check()
	require.NoError(t, err)
	got := request.PersistentVolume(spec, parameters, provision.Node{Name: "n", Hostname: "n"})
	require.Equal(t, "rbps=max wbps=2097152 riops=100 wiops=max", got.Annotations["flexlvm.io/io-limits"])
	require.NotContains(t, got.Spec.FlexVolume.Options, "writeBps", "the driver knows no such option")
}

// The PersistentVolumes of both drivers record how often they are trimmed, but the driver's options do not.
func TestTrim(t *testing.T) {
	for trim, want := range map[string]string{"": "", "auto": "", "daily": "daily", "weekly": "weekly", "never": "never"} {
		for _, door := range []pv.Door{pv.Flex, pv.CSI} {
			request := provision.Request{
				PVName: pvName, Claim: claim(nil), Cluster: ledgertest.Cluster, Door: door,
				Class: class(func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"trim": trim} }),
			}
			spec, parameters, err := request.Check()
			require.NoError(t, err)
			got := request.PersistentVolume(spec, parameters, provision.Node{Name: "n", Hostname: "n"})
			require.Equal(t, want, got.Annotations["flexlvm.io/trim"])
			read, err := persistentvolume.Parse(got)
			require.NoError(t, err)
			require.Equal(t, want, read.Trim)
			if door == pv.CSI {
				require.NotContains(t, got.Spec.CSI.VolumeAttributes, "trim")
			} else {
				require.NotContains(t, got.Spec.FlexVolume.Options, "trim")
			}
		}
	}
}

func TestPersistentVolumeOfALayout(t *testing.T) {
	for layout, want := range map[volume.Layout]struct {
		parameters, options map[string]string
		charged             volume.Bytes
	}{
		volume.Striped: {
			map[string]string{"layout": "striped"}, map[string]string{"layout": "striped", "stripes": "2", "stripeSizeKiB": "64"},
			volume.XFSDeviceSize(volume.GiB, 0).RoundUp(2 * volume.DefaultExtent),
		},
		volume.Raid1: {
			map[string]string{"layout": "raid1", "mirrors": "2"}, map[string]string{"layout": "raid1", "mirrors": "2"},
			3 * (volume.XFSDeviceSize(volume.GiB, 0) + volume.DefaultExtent),
		},
	} {
		request := provision.Request{
			PVName: pvName, Claim: claim(nil), Cluster: ledgertest.Cluster,
			Class: class(func(c *storagev1.StorageClass) { c.Parameters = want.parameters }),
		}
		spec, parameters, err := request.Check()
		require.NoError(t, err)
		got := request.PersistentVolume(spec, parameters, provision.Node{Name: "n", Hostname: "n"})
		require.Equal(t, decimal(want.charged), got.Annotations["flexlvm.io/charged-bytes"], layout)
		for name, value := range want.options {
			require.Equal(t, value, got.Spec.FlexVolume.Options[name], name)
		}
	}
}

func TestSizes(t *testing.T) {
	tests := map[string]struct {
		asked    string
		size     volume.Bytes
		capacity string
	}{
		"below XFS's minimum": {"64Mi", 64 * volume.MiB, "64Mi"},
		"one byte":            {"1", 4096, "4Ki"},
		"a fraction":          {"100m", 4096, "4Ki"},
		"a block":             {"4096", 4096, "4Ki"},
		"a block and a byte":  {"4097", 8192, "8Ki"},
		"decimal units":       {"1G", 1000001536, "976564Ki"},
		"a fraction of units": {"1.5Gi", 1536 * volume.MiB, "1536Mi"},
		"the largest":         {"500Ti", 500 * volume.TiB, "500Ti"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			request := provision.Request{PVName: pvName, Claim: claim(sized(tt.asked)), Class: class(nil), Cluster: ledgertest.Cluster}
			spec, parameters, err := request.Check()
			require.NoError(t, err)
			require.Equal(t, tt.size, spec.Size)
			require.GreaterOrEqual(t, volume.XFSDeviceSize(spec.Size, 0), spec.Size)
			got := request.PersistentVolume(spec, parameters, provision.Node{Name: "n", Hostname: "n"})
			capacity := got.Spec.Capacity[corev1.ResourceStorage]
			require.Equal(t, tt.capacity, capacity.String())
			require.GreaterOrEqual(t, capacity.Cmp(resource.MustParse(tt.asked)), 0, "a smaller volume would never be bound")
			require.Equal(t, decimal(tt.size), got.Spec.FlexVolume.Options["size"])
		})
	}
}
