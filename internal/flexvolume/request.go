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

// An option is a key that is ours.
type option struct {
	name     string
	required bool
	layout   volume.Layout // where it belongs to one; empty means all
}

// options is sorted by name.
var options = [...]option{
	{name: volume.OptionCloneOf, layout: volume.Thin},
	{name: volume.OptionCluster},
	{name: volume.OptionInodes},
	{name: volume.OptionKind},
	{name: volume.OptionLayout},
	{name: volume.OptionMirrors, layout: volume.Raid1},
	{name: volume.OptionReadOnly},
	{name: volume.OptionSize, required: true},
	{name: volume.OptionStripeKiB, layout: volume.Striped},
	{name: volume.OptionStripes, layout: volume.Striped},
	{name: volume.OptionThinPool, layout: volume.Thin},
	{name: volume.OptionVolume},
	{name: volume.OptionGroup, required: true},
	{name: volume.OptionGroupUUID},
}

// A request is what the options of a call say.
type request struct {
	spec     volume.Spec
	readOnly bool
	pod      string // for the log
}

// parseRequest reads the options as strictly as can be: what is not understood
// is refused, so that a slip in a PersistentVolume is seen at its first mount
// and not when the disk is full. needed are the keys of kubelet's that this verb
// must have. The error is a *volume.FieldError.
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
	if fs := object[keyFSType]; fs != "" && fs != "xfs" {
		return request{}, &volume.FieldError{Field: keyFSType, Value: fs, Reason: "is not a file system that flexlvm makes; leave fsType out of the PersistentVolume, or set it to xfs"}
	}
	if r.spec, err = parseSpec(object); err != nil {
		return request{}, err
	}
	return r, r.spec.Validate()
}

// checkKeys refuses secrets, then keys that nobody knows, then looks for those
// that must be there.
func checkKeys(object map[string]string, needed []string) error {
	var unknown []string
	for key := range object {
		if isSecret(key) {
			return &volume.FieldError{Field: keySecret, Reason: "is not accepted: kubelet writes a driver's arguments to its log; remove secretRef from the PersistentVolume"}
		}
		if !known(key) && !strings.HasPrefix(key, keyPrefix) {
			unknown = append(unknown, shown(key))
		}
	}
	if len(unknown) > 0 {
		sort.Strings(unknown)
		return &volume.FieldError{Field: firstFew(unknown), Reason: "is not an option of flexlvm; the options are " + optionNames()}
	}
	var missing []string
	for _, o := range options {
		if o.required {
			needed = append(needed, o.name)
		}
	}
	for _, key := range needed {
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

func known(key string) bool {
	for _, o := range options {
		if o.name == key {
			return true
		}
	}
	return false
}

func optionNames() string {
	names := make([]string, 0, len(options))
	for _, o := range options {
		names = append(names, o.name)
	}
	return strings.Join(names, ", ")
}

// firstFew keeps a thousand strange keys from filling a message.
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

func parseSpec(object map[string]string) (volume.Spec, error) {
	var s volume.Spec
	nameKey := keyName
	if _, there := object[volume.OptionVolume]; there {
		nameKey = volume.OptionVolume
	}
	parse := []struct {
		key  string
		into func(key, value string) error
	}{
		{volume.OptionGroup, store(&s.Group, volume.ParseGroup)},
		{nameKey, store(&s.Name, volume.ParseName)},
		{volume.OptionSize, store(&s.Size, volume.ParseBytes)},
		{volume.OptionLayout, store(&s.Layout, volume.ParseLayout)},
		{volume.OptionStripes, store(&s.Stripes, volume.ParseStripes)},
		{volume.OptionStripeKiB, store(&s.StripeKiB, volume.ParseStripeKiB)},
		{volume.OptionMirrors, store(&s.Mirrors, volume.ParseMirrors)},
		{volume.OptionThinPool, store(&s.ThinPool, volume.ParseThinPool)},
		{volume.OptionCloneOf, store(&s.CloneOf, volume.ParseName)},
		{volume.OptionGroupUUID, store(&s.GroupUUID, volume.ParseGroupUUID)},
		{volume.OptionInodes, store(&s.Inodes, volume.ParseInodes)},
		{volume.OptionCluster, store(&s.Cluster, volume.ParseCluster)},
		{volume.OptionKind, store(&s.Kind, volume.ParseKind)},
		{volume.OptionReadOnly, store(&s.ReadOnly, volume.ParseReadOnly)},
		{keyNamespace, store(&s.Namespace, volume.ParseNamespace)},
	}
	s.Layout, s.Kind = volume.Linear, volume.Claim
	for _, p := range parse {
		value, there := object[p.key]
		if !there {
			continue
		}
		if err := p.into(p.key, value); err != nil {
			return volume.Spec{}, err
		}
	}
	return s, checkLayoutOptions(object, s.Layout)
}

// store parses a value and keeps it.
func store[T any](into *T, parse func(field, s string) (T, error)) func(key, value string) error {
	return func(key, value string) error {
		v, err := parse(key, value)
		if err == nil {
			*into = v
		}
		return err
	}
}

// checkLayoutOptions refuses options of a layout that was not asked for.
func checkLayoutOptions(object map[string]string, layout volume.Layout) error {
	for _, o := range options {
		value, there := object[o.name]
		if there && o.layout != "" && o.layout != layout {
			return &volume.FieldError{Field: o.name, Value: value, Reason: fmt.Sprintf("belongs to layout %s, and the layout is %s; remove it", o.layout, layout)}
		}
	}
	return nil
}
