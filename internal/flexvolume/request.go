package flexvolume

import (
	"fmt"
	"sort"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Keys that kubelet adds to the options. Users cannot set them: API validation
// refuses keys of kubernetes.io in a flexVolume's options.
const (
	keyPrefix    = "kubernetes.io/"
	keyFSType    = keyPrefix + "fsType"
	keyReadWrite = keyPrefix + "readwrite"
	keyName      = keyPrefix + "pvOrVolumeName"
	keyNamespace = keyPrefix + "pod.namespace"
	keyPod       = keyPrefix + "pod.name"
	keySecret    = keyPrefix + "secret"
)

func isSecret(key string) bool { return strings.HasPrefix(key, keySecret) }

// A request holds the parsed options of a call.
type request struct {
	spec     volume.Spec
	readOnly bool
	pod      string // for the log
}

// parseRequest parses the options strictly: anything unknown is refused, so that a mistake in a
// PersistentVolume shows at its first mount and not when the disk is full. needed are those of kubelet's keys
// that the verb requires. Errors are of type *volume.FieldError.
func parseRequest(text string, needed ...string) (request, error) {
	object, err := parseObject(text)
	if err != nil {
		return request{}, err
	}
	if err := checkKeys(object, needed); err != nil {
		return request{}, err
	}
	r := request{pod: object[keyPod]}
	if r.readOnly, err = parseReadOnly(object); err != nil {
		return request{}, err
	}
	if r.spec, err = parseSpec(object); err != nil {
		return request{}, err
	}
	if err := r.spec.CheckFSType(keyFSType, object[keyFSType]); err != nil {
		return request{}, err
	}
	if r.spec.Encrypted {
		return request{}, &volume.FieldError{Field: volume.OptionEncrypted, Value: "true", Reason: "is for the CSI driver alone: kubelet would pass the key to this driver in its arguments, and write it to its log; use a class with door: csi"}
	}
	if r.spec.FSType == volume.Raw {
		return request{}, &volume.FieldError{Field: volume.OptionVolumeMode, Value: volume.ModeBlock, Reason: "is for the CSI driver alone: kubelet gives pods no devices through FlexVolume drivers; use a class with door: csi"}
	}
	if owner := r.spec.OwnerNamespace; owner != "" {
		return request{}, &volume.FieldError{Field: volume.OptionOwner, Value: owner, Reason: "is for the CSI driver alone: options of this driver can be written into a pod, so they do not say whose volume it is"}
	}
	return r, r.spec.Validate()
}

// checkKeys refuses secrets and unknown keys, and then reports required keys that are missing.
func checkKeys(object map[string]string, needed []string) error {
	var unknown []string
	for key := range object {
		if isSecret(key) {
			return &volume.FieldError{Field: keySecret, Reason: "is not accepted: kubelet writes a driver's arguments to its log; remove secretRef from the PersistentVolume"}
		}
		if !volume.IsOption(key) && !strings.HasPrefix(key, keyPrefix) {
			unknown = append(unknown, shown(key))
		}
	}
	if len(unknown) > 0 {
		sort.Strings(unknown)
		return &volume.FieldError{Field: firstFew(unknown), Reason: "is not an option of flexlvm; the options are " +
			strings.Join(volume.OptionNames(func(volume.Option) bool { return true }), ", ")}
	}
	var missing []string
	for _, key := range append(volume.OptionNames(func(o volume.Option) bool { return o.Required }), needed...) {
		if _, there := object[key]; !there {
			missing = append(missing, key)
		}
	}
	if len(missing) > 0 {
		sort.Strings(missing)
		return &volume.FieldError{Field: strings.Join(missing, ", "), Reason: "is missing from the options"}
	}
	return nil
}

// firstFew lists the first names and counts the rest, so that a thousand unknown keys do not fill a message.
func firstFew(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

func parseReadOnly(object map[string]string) (bool, error) {
	switch v := object[keyReadWrite]; v {
	case "rw":
		return false, nil
	case "ro":
		return true, nil
	default:
		return false, &volume.FieldError{Field: keyReadWrite, Value: v, Reason: `is neither "rw" nor "ro"`}
	}
}

// parseSpec parses flexlvm's options and those of kubelet's keys that complete them: the name, unless an option
// sets it, and the namespace.
func parseSpec(object map[string]string) (volume.Spec, error) {
	ours := map[string]string{}
	for key, value := range object {
		if volume.IsOption(key) {
			ours[key] = value
		}
	}
	s, err := volume.ParseOptions(ours)
	if err != nil {
		return volume.Spec{}, err
	}
	if name, there := object[keyName]; there && ours[volume.OptionVolume] == "" {
		if s.Name, err = volume.ParseName(keyName, name); err != nil {
			return volume.Spec{}, err
		}
	}
	if namespace, there := object[keyNamespace]; there {
		if s.Namespace, err = volume.ParseNamespace(keyNamespace, namespace); err != nil {
			return volume.Spec{}, err
		}
	}
	return s, nil
}
