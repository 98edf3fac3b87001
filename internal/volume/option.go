package volume

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Option names as in the PersistentVolume's flexVolume.options. Errors about a Spec use
// them too.
const (
	OptionGroup     = "volumeGroup"
	OptionGroupUUID = "volumeGroupUUID"
	OptionSize      = "size"
	OptionLayout    = "layout"
	OptionThinPool  = "thinPool"
	// OptionDirectoryPool names the pool of directory volumes.
	OptionDirectoryPool = "directoryPool"
	OptionCloneOf       = "cloneOf"
	OptionReserve       = "reserve"
	OptionStripes       = "stripes"
	OptionStripeKiB     = "stripeSizeKiB"
	OptionMirrors       = "mirrors"
	OptionInodes        = "inodes"
	OptionCluster       = "clusterUID"
	OptionKind          = "kind"
	OptionReadOnly      = "readOnly"
	OptionVersions      = "versions"
	OptionOwner         = "ownerNamespace"
	OptionVolume        = "volume"
	OptionFS            = "filesystemUUID"
	OptionEncrypted     = "encrypted"
	OptionFSType        = "fsType"
	// OptionVolumeMode is written only if it is Block.
	OptionVolumeMode = "volumeMode"
)

// An Option is a field of a Spec as it appears in a PersistentVolume's
// flexVolume.options.
type Option struct {
	Name     string
	Layout   Layout // the only layout that has the option; empty: all have it
	Required bool
	Class    bool // a StorageClass may set it under the same name
	// parse parses text into s; the error is a *FieldError about field.
	parse func(s *Spec, field, text string) error
	// print returns the option's text; empty if it is unset, or never written.
	print func(s *Spec) string
}

// options describes every option. All code that reads, writes or checks options uses this table, so
// a new option is a new row here. Messages to users list the options in this order.
var options = [...]Option{
	{Name: OptionGroup, Required: true, Class: true,
		parse: into(func(s *Spec) *Group { return &s.Group }, ParseGroup),
		print: func(s *Spec) string { return string(s.Group) }},
	{Name: OptionGroupUUID,
		parse: into(func(s *Spec) *string { return &s.GroupUUID }, ParseGroupUUID),
		print: func(s *Spec) string { return s.GroupUUID }},
	// The name is that of the PersistentVolume, so it is not written.
	{Name: OptionVolume,
		parse: into(func(s *Spec) *Name { return &s.Name }, ParseName),
		print: func(*Spec) string { return "" }},
	{Name: OptionSize, Required: true,
		parse: into(func(s *Spec) *Bytes { return &s.Size }, ParseBytes),
		print: func(s *Spec) string { return strconv.FormatInt(int64(s.Size), 10) }},
	{Name: OptionLayout, Class: true,
		parse: into(func(s *Spec) *Layout { return &s.Layout }, ParseLayout),
		print: func(s *Spec) string { return string(s.Layout) }},
	{Name: OptionThinPool, Layout: Thin, Class: true,
		parse: into(func(s *Spec) *Name { return &s.ThinPool }, ParseThinPool),
		print: func(s *Spec) string { return string(s.ThinPool) }},
	{Name: OptionDirectoryPool, Layout: Directory, Class: true,
		parse: into(func(s *Spec) *Name { return &s.DirectoryPool }, ParseDirectoryPool),
		print: func(s *Spec) string { return string(s.DirectoryPool) }},
	{Name: OptionCloneOf,
		parse: into(func(s *Spec) *Name { return &s.CloneOf }, ParseName),
		print: func(s *Spec) string { return string(s.CloneOf) }},
	{Name: OptionReserve, Layout: Linear,
		parse: into(func(s *Spec) *Reserve { return &s.Reserve }, ParseReserve),
		print: func(s *Spec) string { return s.Reserve.String() }},
	// The numbers of a layout are written even if they are unset, so that a later default does not
	// change existing volumes.
	{Name: OptionStripes, Layout: Striped, Class: true,
		parse: into(func(s *Spec) *int { return &s.Stripes }, ParseStripes),
		print: func(s *Spec) string { return number(s.Shape().Stripes) }},
	{Name: OptionStripeKiB, Layout: Striped, Class: true,
		parse: into(func(s *Spec) *int { return &s.StripeKiB }, ParseStripeKiB),
		print: func(s *Spec) string { return number(s.Shape().StripeKiB) }},
	{Name: OptionMirrors, Layout: Raid1, Class: true,
		parse: into(func(s *Spec) *int { return &s.Mirrors }, ParseMirrors),
		print: func(s *Spec) string { return number(s.Shape().Mirrors) }},
	{Name: OptionInodes, Class: true,
		parse: into(func(s *Spec) *int64 { return &s.Inodes }, ParseInodes),
		print: func(s *Spec) string { return number(s.Inodes) }},
	{Name: OptionFSType, Class: true,
		parse: into(func(s *Spec) *FSType { return &s.FSType }, ParseFSType),
		print: func(s *Spec) string { return onlyFSType(s.FSType) }},
	{Name: OptionVolumeMode, // from the claim; parsed after OptionFSType
		parse: parseVolumeMode,
		print: func(s *Spec) string {
			if s.FSType != Raw {
				return ""
			}
			return ModeBlock
		}},
	{Name: OptionKind, Class: true,
		parse: into(func(s *Spec) *Kind { return &s.Kind }, ParseKind),
		print: func(s *Spec) string { return string(s.Kind) }},
	{Name: OptionReadOnly,
		parse: into(func(s *Spec) *bool { return &s.ReadOnly }, ParseReadOnly),
		print: func(s *Spec) string { return onlyTrue(s.ReadOnly) }},
	{Name: OptionVersions,
		parse: into(func(s *Spec) *bool { return &s.Versions }, ParseBool),
		print: func(s *Spec) string { return onlyTrue(s.Versions) }},
	{Name: OptionOwner,
		parse: into(func(s *Spec) *string { return &s.OwnerNamespace }, ParseNamespace),
		print: func(s *Spec) string { return s.OwnerNamespace }},
	{Name: OptionEncrypted, Class: true,
		parse: into(func(s *Spec) *bool { return &s.Encrypted }, ParseEncrypted),
		print: func(s *Spec) string { return onlyTrue(s.Encrypted) }},
	{Name: OptionFS,
		parse: into(func(s *Spec) *string { return &s.FS }, ParseFS),
		print: func(s *Spec) string { return s.FS }},
	{Name: OptionCluster,
		parse: into(func(s *Spec) *string { return &s.Cluster }, ParseCluster),
		print: func(s *Spec) string { return s.Cluster }},
}

// into returns the parse function of an option that is one field of a Spec.
func into[T any](of func(*Spec) *T, parse func(field, s string) (T, error)) func(*Spec, string, string) error {
	return func(s *Spec, field, text string) error {
		v, err := parse(field, text)
		if err == nil {
			*of(s) = v
		}
		return err
	}
}

// onlyTrue returns the text of an option whose default is false: empty for false.
func onlyTrue(b bool) string {
	if !b {
		return ""
	}
	return "true"
}

func number[T int | int64](n T) string {
	if n <= 0 {
		return ""
	}
	return strconv.FormatInt(int64(n), 10)
}

// Options returns all options.
func Options() []Option { return slices.Clone(options[:]) }

// OptionNames returns the names of the options for which keep returns true.
func OptionNames(keep func(Option) bool) []string {
	var names []string
	for _, o := range options {
		if keep(o) {
			names = append(names, o.Name)
		}
	}
	return names
}

// IsOption reports whether there is an option of that name.
func IsOption(name string) bool {
	return slices.ContainsFunc(options[:], func(o Option) bool { return o.Name == name })
}

// Parse parses the option's text into s. The error is a *FieldError.
func (o Option) Parse(s *Spec, text string) error { return o.parse(s, o.Name, text) }

// ParseOptions parses a PersistentVolume's flexVolume.options strictly: it rejects an option that
// is unknown or belongs to another layout, because the option may change what the volume is. The
// caller adds the namespace, and the name if no option has it, and calls Validate. The error is a
// *FieldError.
func ParseOptions(given map[string]string) (Spec, error) {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !IsOption(name) {
			return Spec{}, unknown("option", name, "; the options are "+strings.Join(OptionNames(func(Option) bool { return true }), ", "))
		}
	}
	s := Spec{Layout: Linear, Kind: Claim}
	for _, o := range options {
		text, there := given[o.Name]
		if !there {
			continue
		}
		if err := o.Parse(&s, text); err != nil {
			return Spec{}, err
		}
	}
	for _, o := range options {
		if text, there := given[o.Name]; there && !o.of(s.Layout) {
			return Spec{}, o.foreign(text, s.Layout)
		}
	}
	return s, nil
}

// ReadOptions parses a PersistentVolume's options as far as it can, and returns the names of those
// that it cannot parse.
func ReadOptions(given map[string]string) (s Spec, unread []string) {
	s = Spec{Layout: Linear, Kind: Claim}
	for _, o := range options {
		if text, there := given[o.Name]; there && o.Parse(&s, text) != nil {
			unread = append(unread, o.Name)
		}
	}
	return s, unread
}

// Options returns s as a PersistentVolume's flexVolume.options, which ParseOptions parses back to
// s. It includes the layout's default numbers, but no other unset fields, and neither the name (the
// PersistentVolume's) nor the namespace, because the kubelet passes both.
func (s Spec) Options() map[string]string {
	out := map[string]string{}
	for _, o := range options {
		if text := o.print(&s); text != "" {
			out[o.Name] = text
		}
	}
	return out
}

// of reports whether a layout has the option.
func (o Option) of(l Layout) bool { return o.Layout == "" || o.Layout == l }

// foreign returns the error about an option that the layout does not have.
func (o Option) foreign(text string, l Layout) error {
	return &FieldError{Field: o.Name, Value: text, Reason: fmt.Sprintf("belongs to layout %s, and the layout is %s; remove it", o.Layout, l)}
}
