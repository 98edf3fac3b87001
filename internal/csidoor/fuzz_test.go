package csidoor

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/flexlvm/flexlvm/internal/pv"
)

// FuzzParsePublish checks that whatever a PersistentVolume contains, the engine gets a valid volume,
// that of the handle, for the pod's namespace.
func FuzzParsePublish(f *testing.F) {
	const kubelet = "csi.storage.k8s.io/pod.namespace=shop,csi.storage.k8s.io/ephemeral=false"
	f.Add("flexlvm/pvc-1", "volumeGroup=flexlvm,size=1073741824,namespace=shop,"+kubelet, "noatime", "xfs", int32(7))
	f.Add("flexlvm/ds-1/readers", "volumeGroup=flexlvm,size=1,kind=dataset,readOnly=true,volume=ds-1,namespace=shop,"+kubelet, "", "", int32(3))
	f.Add("flexlvm/pvc-1", "volumeGroup=other,size=1,namespace=shop,"+kubelet, "suid", "ext4", int32(5))
	f.Add("../x", "volumeGroup=..,size=-1,volume=pvc-2,namespace=thief,"+kubelet, "noatime,strictatime", "", int32(0))
	f.Add("flexlvm/pvc-1", "volumeGroup=flexlvm,size=1,layout=thin,thinPool=pvc-1,namespace=shop,"+kubelet, "", "", int32(6))
	f.Fuzz(func(t *testing.T, id, attributes, options, fsType string, mode int32) {
		context := map[string]string{}
		for _, pair := range strings.Split(attributes, ",") {
			key, value, _ := strings.Cut(pair, "=")
			context[key] = value
		}
		r := &csi.NodePublishVolumeRequest{
			VolumeId: id, TargetPath: "/pods/1/mount", VolumeContext: context,
			VolumeCapability: &csi.VolumeCapability{
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: strings.Fields(options)}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_Mode(mode)},
			},
		}
		p, err := parsePublish(r)
		if err != nil {
			require.Contains(t, []codes.Code{codes.InvalidArgument, codes.NotFound, codes.PermissionDenied}, codeOf(err), err)
			return
		}
		require.NoError(t, p.spec.Validate())
		require.Equal(t, id, pv.Handle(p.spec.Group, p.spec.Name, p.spec.ReadOnly))
		require.Equal(t, context["csi.storage.k8s.io/pod.namespace"], p.spec.Namespace)
		require.Equal(t, context["namespace"], p.spec.Namespace)
		require.NotEmpty(t, p.spec.Namespace)
		require.NotEqual(t, "true", context["csi.storage.k8s.io/ephemeral"])
	})
}
