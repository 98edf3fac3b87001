package csidoor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestPublish(t *testing.T) {
	d := open(t)
	r := publish(t)
	r.VolumeCapability.GetMount().MountFlags = []string{"noatime"}
	for range 2 { // the second call finds the directory
		_, err := d.NodePublishVolume(t.Context(), r)
		require.NoError(t, err)
	}
	require.DirExists(t, r.GetTargetPath())
	want := engineCall{verb: "mount", spec: spec(), request: node.MountRequest{Target: r.GetTargetPath(), Options: []volume.MountOption{volume.NoAtime}}}
	require.Equal(t, []engineCall{want, want}, d.engine.calls)

	_, err := d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: r.GetVolumeId(), TargetPath: r.GetTargetPath()})
	require.NoError(t, err)
	require.NoDirExists(t, r.GetTargetPath())
	require.DirExists(t, filepath.Dir(r.GetTargetPath()))
	_, err = d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: r.GetVolumeId(), TargetPath: r.GetTargetPath()})
	require.NoError(t, err)
	require.Equal(t, []string{"mount", "mount", "unmount", "unmount"}, d.engine.verbs())
}

func asBlock(r *csi.NodePublishVolumeRequest) {
	r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
}

// A device is published as a file, only to the pod that the request is for.
func TestPublishBlock(t *testing.T) {
	d := open(t)
	r := publish(t)
	asBlock(r)
	r.VolumeContext["volumeMode"] = "Block"
	dir := filepath.Join(t.TempDir(), "plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1")
	require.NoError(t, os.MkdirAll(dir, 0o750))
	r.TargetPath = filepath.Join(dir, "5f1")
	_, err := d.NodePublishVolume(t.Context(), r)
	require.Equal(t, codes.PermissionDenied, status.Code(err), "another pod's")
	require.NoFileExists(t, r.GetTargetPath())
	r.TargetPath = filepath.Join(dir, "5f0")
	for range 2 { // kubelet repeats the call if it did not learn of its success
		_, err = d.NodePublishVolume(t.Context(), r)
		require.NoError(t, err)
	}
	require.FileExists(t, r.GetTargetPath())
	require.Equal(t, volume.Raw, d.engine.calls[0].spec.FSType)
	d.engine.space = node.Space{Size: volume.GiB, Block: true}
	stats, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: r.GetVolumeId(), VolumePath: r.GetTargetPath()})
	require.NoError(t, err)
	require.Len(t, stats.GetUsage(), 1)
	require.Equal(t, int64(volume.GiB), stats.GetUsage()[0].GetTotal())
	for range 2 {
		_, err = d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: r.GetVolumeId(), TargetPath: r.GetTargetPath()})
		require.NoError(t, err)
	}
	require.NoFileExists(t, r.GetTargetPath())
}

// Each access mode has Kubernetes' meaning.
func TestAccessModes(t *testing.T) {
	for mode, request := range map[csi.VolumeCapability_AccessMode_Mode]node.MountRequest{
		csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        {},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  {},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: {Alone: true},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:   {},
		csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:    {},
	} {
		r := publish(t)
		r.VolumeCapability.AccessMode.Mode = mode
		p, err := parsePublish(r)
		require.NoError(t, err, mode)
		request.Target = r.GetTargetPath()
		require.Equal(t, request, p.request, mode)
	}
	r := publish(t)
	r.Readonly = true
	p, err := parsePublish(r)
	require.NoError(t, err)
	require.True(t, p.request.ReadOnly)
}

// The readers of a dataset have their own handle, and no other volume has it.
func TestPublishForReaders(t *testing.T) {
	r := publish(t)
	r.VolumeId = "flexlvm/ds-1/readers"
	r.VolumeContext["kind"], r.VolumeContext["readOnly"], r.VolumeContext["volume"] = "dataset", "true", "ds-1"
	p, err := parsePublish(r)
	require.NoError(t, err)
	require.True(t, p.spec.ReadOnly)
	require.EqualValues(t, "ds-1", p.spec.Name)

	// A dataset that another namespace offers is looked up in its owner's namespace, for pods of the
	// namespace that it is offered to.
	require.EqualValues(t, "shop", p.spec.Namespace)
	r.VolumeContext["ownerNamespace"] = "library"
	p, err = parsePublish(r)
	require.NoError(t, err)
	require.EqualValues(t, "library", p.spec.Namespace)
	for _, thief := range []string{"thief", "library"} {
		r.VolumeContext["csi.storage.k8s.io/pod.namespace"] = thief
		_, err = parsePublish(r)
		require.ErrorIs(t, err, node.ErrRefused, "a pod of %s", thief)
	}
	r.VolumeContext["csi.storage.k8s.io/pod.namespace"] = "shop"
	delete(r.VolumeContext, "readOnly")
	r.VolumeId = "flexlvm/ds-1"
	_, err = parsePublish(r)
	require.ErrorContains(t, err, `ownerNamespace "library": belongs to readOnly true`)
	r.VolumeContext["readOnly"] = "true"
	delete(r.VolumeContext, "ownerNamespace")

	r.VolumeId = "flexlvm/ds-1"
	_, err = parsePublish(r)
	require.ErrorContains(t, err, "does not fit the volume handle")
	r.VolumeId = "flexlvm/ds-1/readers"
	delete(r.VolumeContext, "readOnly")
	_, err = parsePublish(r)
	require.ErrorContains(t, err, "does not fit the volume handle")
}

// A refused request never reaches the engine and creates no directory.
func TestPublishIsRefused(t *testing.T) {
	tests := map[string]struct {
		spoil func(*csi.NodePublishVolumeRequest)
		code  codes.Code
		says  string
	}{
		"no volume":          {func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "" }, codes.InvalidArgument, "volume_id: is missing"},
		"another handle":     {func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "csi-0123456789abcdef" }, codes.NotFound, "GROUP/VOLUME"},
		"a path as a handle": {func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "flexlvm/../root" }, codes.NotFound, "volume_id"},
		"no target":          {func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "" }, codes.InvalidArgument, "target_path: is missing"},
		"a relative target":  {func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "mount" }, codes.InvalidArgument, "is not an absolute path"},
		"no capability":      {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil }, codes.InvalidArgument, "volume_capability: is missing"},
		"a secret":           {func(r *csi.NodePublishVolumeRequest) { r.Secrets = map[string]string{"key": "hush"} }, codes.InvalidArgument, "secrets: belong to encrypted volumes"},
		"no secret":          {func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["encrypted"] = "true" }, codes.InvalidArgument, "secrets: are missing, and the volume is encrypted"},
		"another's secret": {func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext["encrypted"], r.Secrets = "true", map[string]string{"password": strings.Repeat("hush", 10)}
		}, codes.InvalidArgument, `secrets: hold no entry "key"`},
		"a short key": {func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext["encrypted"], r.Secrets = "true", map[string]string{"key": "hush"}
		}, codes.InvalidArgument, `secrets: hold an entry "key" that cannot be used: a key has 32 to 4096 bytes, and this one has 4`},
		"a device of a file system": {asBlock, codes.InvalidArgument, `volumeMode "Block": is not what the volumeAttributes of the PersistentVolume say, which is Filesystem`},
		"a file system of a device": {func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["volumeMode"] = "Block" }, codes.InvalidArgument, `volumeMode "Filesystem": is not what`},
		"a device of a dataset": {func(r *csi.NodePublishVolumeRequest) {
			asBlock(r)
			r.VolumeContext["volumeMode"], r.VolumeContext["kind"] = "Block", "dataset"
		}, codes.InvalidArgument, `volumeMode "Block": does not belong to kind dataset`},
		"another file system":   {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().FsType = "ext4" }, codes.InvalidArgument, `fsType "ext4": is not what the options of the PersistentVolume say: fsType is xfs`},
		"another than is meant": {func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["fsType"] = "ext4" }, codes.InvalidArgument, `fsType "xfs": is not what the options`},
		"an unsafe option":      {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().MountFlags = []string{"noquota"} }, codes.InvalidArgument, `mountOptions "noquota"`},
		"a mount group":         {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "7" }, codes.InvalidArgument, "fsGroup"},
		"many writers": {func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		}, codes.InvalidArgument, "on the disk of one node"},
		"inline in a pod": {func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["csi.storage.k8s.io/ephemeral"] = "true" }, codes.InvalidArgument, "no ephemeral inline volumes"},
		"no pod":          {func(r *csi.NodePublishVolumeRequest) { delete(r.VolumeContext, "csi.storage.k8s.io/pod.namespace") }, codes.InvalidArgument, "podInfoOnMount"},
		"no owner":        {func(r *csi.NodePublishVolumeRequest) { delete(r.VolumeContext, "namespace") }, codes.InvalidArgument, "volumeAttributes"},
		"another's pod":   {func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["csi.storage.k8s.io/pod.namespace"] = "thief" }, codes.PermissionDenied, `created for namespace "shop", and the pod is in "thief"`},
		// As a PersistentVolume may set it if kubelet does not.
		"a forged pod":                {func(r *csi.NodePublishVolumeRequest) { delete(r.VolumeContext, "csi.storage.k8s.io/pod.uid") }, codes.InvalidArgument, "podInfoOnMount"},
		"a pod that is another":       {func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["csi.storage.k8s.io/pod.uid"] = "5f1" }, codes.PermissionDenied, `the pod "5f1", and the target_path is of the pod "5f0"`},
		"an option that nobody knows": {func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["sizes"] = "1" }, codes.InvalidArgument, `option "sizes"`},
		"no size":                     {func(r *csi.NodePublishVolumeRequest) { delete(r.VolumeContext, "size") }, codes.InvalidArgument, "size: is required"},
		"another group":               {func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["volumeGroup"] = "other" }, codes.InvalidArgument, "is not the group of the volume handle"},
		"another volume":              {func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["volume"] = "pvc-2" }, codes.InvalidArgument, "is not the volume of the volume handle"},
	}
	d := open(t)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := publish(t)
			target := r.GetTargetPath()
			tt.spoil(r)
			_, err := d.NodePublishVolume(t.Context(), r)
			require.Equal(t, tt.code, status.Code(err), err)
			require.ErrorContains(t, err, tt.says)
			require.NotContains(t, err.Error(), "hush")
			require.NoDirExists(t, target)
		})
	}
	require.Empty(t, d.engine.calls)
}

// The key of an encrypted volume reaches the engine, but no log.
func TestKeyReachesTheEngineAlone(t *testing.T) {
	const secret = "hush, a key of more than 32 bytes"
	d := open(t)
	r := publish(t)
	r.VolumeContext["encrypted"], r.Secrets = "true", map[string]string{"key": secret}
	_, err := d.NodePublishVolume(t.Context(), r)
	require.NoError(t, err)
	expand := &csi.NodeExpandVolumeRequest{VolumeId: r.GetVolumeId(), VolumePath: "/x", CapacityRange: &csi.CapacityRange{RequiredBytes: 1}, Secrets: r.GetSecrets()}
	_, err = d.NodeExpandVolume(t.Context(), expand)
	require.NoError(t, err)
	require.Equal(t, []string{"mount", "expand"}, d.engine.verbs())
	require.True(t, d.engine.calls[0].spec.Encrypted)
	for _, c := range d.engine.calls[:2] {
		require.False(t, c.request.Key.IsZero(), c.verb)
	}
	d.engine.do = func(context.Context) error { return fmt.Errorf("open: %w", luks.ErrWrongKey) }
	_, err = d.NodePublishVolume(t.Context(), r)
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	_, err = d.NodeExpandVolume(t.Context(), expand)
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	require.Contains(t, d.log.String(), "wrong key")
	require.NotContains(t, d.log.String(), "hush")
}

// A missing field is reported before a missing volume.
func TestMissingFieldsComeFirst(t *testing.T) {
	d := open(t)
	r := publish(t)
	r.VolumeId, r.VolumeCapability = "any", nil
	_, err := d.NodePublishVolume(t.Context(), r)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	r = publish(t)
	r.VolumeId, r.TargetPath = "any", ""
	_, err = d.NodePublishVolume(t.Context(), r)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "any"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: "any"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "any", VolumePath: "/x"})
	require.Equal(t, codes.NotFound, status.Code(err))
}

// A failed mount leaves the target as it was.
func TestFailedPublishLeavesNothing(t *testing.T) {
	d := open(t)
	d.engine.do = func(context.Context) error { return lvm.ErrNoSpace }
	r := publish(t)
	_, err := d.NodePublishVolume(t.Context(), r)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.NoDirExists(t, r.GetTargetPath())

	require.NoError(t, os.Mkdir(r.GetTargetPath(), 0o750))
	_, err = d.NodePublishVolume(t.Context(), r)
	require.Error(t, err)
	require.DirExists(t, r.GetTargetPath(), "it was there before")
}

// A target that the engine refuses to unmount stays, and so does one that is not an empty directory.
func TestUnpublishRemovesNoData(t *testing.T) {
	d := open(t)
	target := filepath.Join(t.TempDir(), "mount")
	require.NoError(t, os.Mkdir(target, 0o750))
	request := &csi.NodeUnpublishVolumeRequest{VolumeId: "flexlvm/pvc-1", TargetPath: target}
	d.engine.do = func(context.Context) error { return fmt.Errorf("unmount: %w", mount.ErrBusy) }
	_, err := d.NodeUnpublishVolume(t.Context(), request)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.DirExists(t, target)

	d.engine.do = nil
	require.NoError(t, os.WriteFile(filepath.Join(target, "data"), []byte("x"), 0o600))
	_, err = d.NodeUnpublishVolume(t.Context(), request)
	require.ErrorContains(t, err, "not empty")
	require.FileExists(t, filepath.Join(target, "data"))

	for field, r := range map[string]*csi.NodeUnpublishVolumeRequest{
		"volume_id":               {TargetPath: target},
		"target_path":             {VolumeId: "flexlvm/pvc-1"},
		"is not an absolute path": {VolumeId: "flexlvm/pvc-1", TargetPath: "x"},
	} {
		_, err = d.NodeUnpublishVolume(t.Context(), r)
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.ErrorContains(t, err, field)
	}
}

func TestExpand(t *testing.T) {
	d := open(t)
	d.engine.space = node.Space{Size: 2 * volume.GiB}
	request := func(id string, size, limit int64) *csi.NodeExpandVolumeRequest {
		return &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: "/pods/1/mount", CapacityRange: &csi.CapacityRange{RequiredBytes: size, LimitBytes: limit}}
	}
	got, err := d.NodeExpandVolume(t.Context(), request("flexlvm/pvc-1", 2<<30, 0))
	require.NoError(t, err)
	require.EqualValues(t, 2<<30, got.GetCapacityBytes())
	require.Equal(t, engineCall{verb: "expand", spec: volume.Spec{Group: "flexlvm", Name: "pvc-1"}, request: node.MountRequest{Target: "/pods/1/mount"}, size: 2 * volume.GiB}, d.engine.calls[0])

	d.engine.calls = nil
	_, err = d.NodeExpandVolume(t.Context(), request("flexlvm/ds-1/readers", 2<<30, 0))
	require.NoError(t, err)
	require.Equal(t, []string{"space"}, d.engine.verbs(), "readers grow nothing")

	for _, r := range []*csi.NodeExpandVolumeRequest{
		request("flexlvm/pvc-1", -1, 0), request("flexlvm/pvc-1", 1<<62, 0), request("flexlvm/pvc-1", 10, 9), {VolumeId: "flexlvm/pvc-1"}, {VolumePath: "/x"},
	} {
		_, err = d.NodeExpandVolume(t.Context(), r)
		require.Equal(t, codes.InvalidArgument, status.Code(err), r)
	}
	_, err = d.NodeExpandVolume(t.Context(), request("some-id", 1, 0))
	require.Equal(t, codes.NotFound, status.Code(err))
	d.engine.do = func(context.Context) error { return lvm.ErrNoSpace }
	_, err = d.NodeExpandVolume(t.Context(), request("flexlvm/pvc-1", 2<<30, 0))
	require.Equal(t, codes.Internal, status.Code(err), "kubelet tries it again, and gives up nothing")
}

// Each error of the engine has its code for a mount. For a growth it has a code after which kubelet
// retries.
func TestCodesOfCalls(t *testing.T) {
	d := open(t)
	for _, c := range codesOf {
		d.engine.do = func(context.Context) error { return fmt.Errorf("here: %w", c.err) }
		_, err := d.NodePublishVolume(t.Context(), publish(t))
		require.Equal(t, c.code, status.Code(err), c.err)
		want := c.code
		switch {
		case errors.Is(c.err, node.ErrNotMounted): // there is nothing to grow
		case slices.Contains([]codes.Code{codes.FailedPrecondition, codes.NotFound, codes.ResourceExhausted, codes.Unavailable}, want):
			want = codes.Internal
		}
		_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: "flexlvm/pvc-1", VolumePath: "/pods/1/mount", CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}})
		require.Equal(t, want, status.Code(err), c.err)
	}
}
