package csidoor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Field names of requests, as they appear in messages.
const (
	fieldHandle       = "volume_id"
	fieldTarget       = "target_path"
	fieldPath         = "volume_path"
	fieldCapability   = "volume_capability"
	fieldMountOptions = "mountOptions"
	fieldSecrets      = "secrets"
)

// Keys that kubelet adds to the attributes, overwriting attributes of the same names.
const (
	keyPrefix    = "csi.storage.k8s.io/"
	keyNamespace = keyPrefix + "pod.namespace"
	keyPod       = keyPrefix + "pod.name"
	keyUID       = keyPrefix + "pod.uid"
	keyEphemeral = keyPrefix + "ephemeral"
)

// A handle identifies a volume.
type handle struct {
	group   volume.Group
	name    volume.Name
	readers bool
}

// parseHandle parses a volume handle. A handle that is not flexlvm's is the handle of a volume that does not
// exist. Callers report other missing fields first.
func parseHandle(id string) (handle, error) {
	if id == "" {
		return handle{}, missingError(fieldHandle)
	}
	g, n, readers, err := pv.ParseHandle(fieldHandle, id)
	if err != nil {
		return handle{}, status.Error(codes.NotFound, err.Error())
	}
	return handle{g, n, readers}, nil
}

// A publication is a parsed NodePublishVolume request.
type publication struct {
	spec    volume.Spec
	request node.MountRequest
	block   bool // publish the device instead of a file system
}

// parsePublish parses a request strictly: anything unknown is refused, so that a mistake in a PersistentVolume
// shows at its first mount.
func parsePublish(r *csi.NodePublishVolumeRequest) (publication, error) {
	p := publication{request: node.MountRequest{Target: r.GetTargetPath(), ReadOnly: r.GetReadonly()}}
	switch {
	case r.GetVolumeId() == "":
		return publication{}, missingError(fieldHandle)
	case r.GetTargetPath() == "":
		return publication{}, missingError(fieldTarget)
	case r.GetVolumeCapability() == nil:
		return publication{}, missingError(fieldCapability)
	}
	if err := p.parseCapability(r.GetVolumeCapability()); err != nil {
		return publication{}, err
	}
	h, err := parseHandle(r.GetVolumeId())
	if err != nil {
		return publication{}, err
	}
	if p.spec, err = parseAttributes(h, r.GetVolumeContext()); err != nil {
		return publication{}, err
	}
	if err := p.checkMode(); err != nil {
		return publication{}, err
	}
	if err := p.spec.CheckFSType("fsType", r.GetVolumeCapability().GetMount().GetFsType()); err != nil {
		return publication{}, err
	}
	if err := checkPod(r.GetTargetPath(), r.GetVolumeContext()[keyUID]); err != nil {
		return publication{}, err
	}
	if err := p.parseKey(r.GetSecrets()); err != nil {
		return publication{}, err
	}
	if len(p.request.Options) > 0 && p.spec.ReadOnly {
		return publication{}, &volume.FieldError{Field: fieldMountOptions, Reason: "are not supported for the readers of a dataset; remove them from the PersistentVolume"}
	}
	return p, p.spec.Validate()
}

// checkMode refuses a PersistentVolume whose volumeMode contradicts its attributes.
func (p *publication) checkMode() error {
	asked := volume.ModeFilesystem
	if p.block {
		asked = volume.ModeBlock
	}
	if made := p.spec.FSType.VolumeMode(); asked != made {
		return &volume.FieldError{Field: volume.OptionVolumeMode, Value: asked, Reason: fmt.Sprintf("is not what the volumeAttributes of the PersistentVolume say, which is %s; let both say the same", made)}
	}
	return nil
}

// parseKey reads the key of an encrypted volume. For any other volume a Secret is refused.
func (p *publication) parseKey(secrets map[string]string) (err error) {
	switch {
	case !p.spec.Encrypted && len(secrets) > 0:
		return &volume.FieldError{Field: fieldSecrets, Reason: "belong to encrypted volumes, and this one is not; remove nodePublishSecretRef from the PersistentVolume"}
	case !p.spec.Encrypted:
		return nil
	}
	p.request.Key, err = keyFrom(secrets)
	if err == nil && p.request.Key.IsZero() {
		err = &volume.FieldError{Field: fieldSecrets, Reason: "are missing, and the volume is encrypted: the PersistentVolume must name a Secret in nodePublishSecretRef"}
	}
	return err
}

// keyFrom returns the key in a Secret, or a zero key if there is no Secret. Errors reveal nothing of the
// Secret's content.
func keyFrom(secrets map[string]string) (luks.Key, error) {
	if len(secrets) == 0 {
		return luks.Key{}, nil
	}
	secret, there := secrets[pv.SecretKey]
	if !there {
		return luks.Key{}, &volume.FieldError{Field: fieldSecrets, Reason: fmt.Sprintf("hold no entry %q, which is the key of an encrypted volume: add it to the Secret that the PersistentVolume names", pv.SecretKey)}
	}
	key, err := luks.NewKey([]byte(secret))
	if err != nil {
		return luks.Key{}, &volume.FieldError{Field: fieldSecrets, Reason: fmt.Sprintf("hold an entry %q that cannot be used: %s; make one with `head -c 48 /dev/urandom | base64 -w0`", pv.SecretKey, err)}
	}
	return key, nil
}

// checkPod refuses a request whose pod is not the pod of the target directory. If somebody changes the
// CSIDriver to podInfoOnMount: false, kubelet passes on what the PersistentVolume specifies, which cannot
// contain the pod's UID.
func checkPod(target, uid string) error {
	switch pod := podOf(target); {
	case pod == "" || pod == uid:
		return nil
	case uid == "":
		return &volume.FieldError{Field: keyUID, Reason: "is missing: kubelet must say whose pod it is; the CSIDriver " + pv.Provisioner + " must have podInfoOnMount: true"}
	default:
		return fmt.Errorf("%w: the request is for the pod %q, and the %s is of the pod %q; the CSIDriver %s must have podInfoOnMount: true", node.ErrRefused, uid, fieldTarget, pod, pv.Provisioner)
	}
}

// podOf returns the UID of the pod from a target path of kubelet, which is, below kubelet's directory,
// pods/UID/volumes/kubernetes.io~csi/PV/mount, or plugins/kubernetes.io/csi/volumeDevices/publish/PV/UID for a
// device. It is empty for other paths.
func podOf(target string) string {
	parts := strings.Split(target, "/")
	if n := len(parts) - 7; n >= 0 && slices.Equal(parts[n:n+5], []string{"plugins", "kubernetes.io", "csi", "volumeDevices", "publish"}) {
		return parts[n+6]
	}
	if n := len(parts) - 6; n >= 0 && parts[n] == "pods" && parts[n+2] == "volumes" && parts[n+3] == "kubernetes.io~csi" {
		return parts[n+1]
	}
	return ""
}

// parseCapability parses how the volume is to be used.
func (p *publication) parseCapability(c *csi.VolumeCapability) (err error) {
	m := c.GetMount()
	p.block = c.GetBlock() != nil
	switch {
	case m == nil && !p.block:
		return &volume.FieldError{Field: fieldCapability, Reason: "says neither mount nor block"}
	case m.GetVolumeMountGroup() != "":
		return &volume.FieldError{Field: "volume_mount_group", Value: m.GetVolumeMountGroup(), Reason: "is not supported: kubelet itself gives the files to the pod's fsGroup"}
	}
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		p.request.Alone = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		// As in the FlexVolume driver, only readOnly makes a mount read-only.
	default:
		return &volume.FieldError{Field: "access mode", Value: mode.String(), Reason: "is not supported: a volume is on the disk of one node; use ReadWriteOnce, ReadWriteOncePod or ReadOnlyMany"}
	}
	p.request.Options, err = volume.ParseMountOptions(fieldMountOptions, m.GetMountFlags())
	return err
}

// parseAttributes parses the attributes of the PersistentVolume and those that kubelet adds.
func parseAttributes(h handle, attributes map[string]string) (volume.Spec, error) {
	if attributes[keyEphemeral] == "true" {
		return volume.Spec{}, &volume.FieldError{Field: "csi", Reason: "is given in a pod: flexlvm has no ephemeral inline volumes, whose size nobody reserves; use an ephemeral volume with a volumeClaimTemplate"}
	}
	owner, asks := attributes[pv.AttributeNamespace], attributes[keyNamespace]
	switch {
	case asks == "":
		return volume.Spec{}, &volume.FieldError{Field: keyNamespace, Reason: "is missing: kubelet must say whose pod it is; the CSIDriver " + pv.Provisioner + " must have podInfoOnMount: true"}
	case owner == "":
		return volume.Spec{}, &volume.FieldError{Field: pv.AttributeNamespace, Reason: "is missing from the volumeAttributes of the PersistentVolume: the provisioner writes there whose volume it is"}
	case owner != asks:
		return volume.Spec{}, fmt.Errorf("%w: the volume was created for namespace %q, and the pod is in %q", node.ErrRefused, owner, asks)
	}
	ours := map[string]string{}
	for key, value := range attributes {
		if key != pv.AttributeNamespace && !strings.HasPrefix(key, keyPrefix) {
			ours[key] = value
		}
	}
	s, err := volume.ParseOptions(ours)
	if err != nil {
		return volume.Spec{}, err
	}
	switch {
	case s.Group != h.group:
		return volume.Spec{}, &volume.FieldError{Field: volume.OptionGroup, Value: string(s.Group), Reason: "is not the group of the volume handle"}
	case s.Name != "" && s.Name != h.name:
		return volume.Spec{}, &volume.FieldError{Field: volume.OptionVolume, Value: string(s.Name), Reason: "is not the volume of the volume handle"}
	case s.ReadOnly != h.readers:
		return volume.Spec{}, &volume.FieldError{Field: volume.OptionReadOnly, Value: ours[volume.OptionReadOnly], Reason: "does not fit the volume handle, which ends in /readers for the readers of a dataset and for nobody else"}
	}
	s.Name = h.name
	s.Namespace, err = volume.ParseNamespace(keyNamespace, asks)
	if s.OwnerNamespace != "" { // checked above: the pod's namespace is the one that the dataset is shared with
		s.Namespace = s.OwnerNamespace
	}
	return s, err
}
