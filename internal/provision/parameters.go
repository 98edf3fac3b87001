package provision

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Parameters of a StorageClass that are not also options of a volume.
const (
	parameterReclaim    = "reclaim"
	parameterWipe       = "wipe"
	parameterTrim       = "trim"
	parameterOnNodeLoss = "onNodeLoss"
	parameterRatio      = "overprovisionRatio"
	parameterTrustPods  = "trustPods"
	// parameterCSIFSType is the usual name of volume.OptionFSType in classes of CSI drivers. It is
	// accepted so that such a class can be converted by changing only its provisioner.
	parameterCSIFSType = "csi.storage.k8s.io/fstype"
)

// Parameters are the parsed parameters of a StorageClass.
type Parameters struct {
	volume.Spec // of each volume, except for name and size
	Reclaim     volume.Reclaim
	Wipe        volume.Wipe
	Trim        volume.Trim
	OnNodeLoss  volume.OnNodeLoss
	IOLimits    volume.IOLimits // of each pod that uses the volume
	Door        pv.Door         // empty if the class names none
	// TrustPods declares that no pod leaves the quota of its directory volume on purpose. Without it,
	// the layout is refused.
	TrustPods bool

	publishSecret, expandSecret secretTemplate // both are set for encrypted classes
}

// A parameter is a parameter of a class that is not an option of the volume.
type parameter struct {
	name   string
	layout volume.Layout // the only layout that has it; empty: all have
	// parse reads text into p; the error is a *volume.FieldError about field.
	parse func(p *Parameters, field, text string) error
}

// classParameters are listed in this order in error messages, after the options of a volume that a
// class may set.
var classParameters = [...]parameter{
	{parameterRatio, volume.Thin, into(func(p *Parameters) *volume.Ratio { return &p.Ratio }, volume.ParseRatio)},
	{parameterTrustPods, volume.Directory, into(func(p *Parameters) *bool { return &p.TrustPods }, volume.ParseBool)},
	{parameterReclaim, "", into(func(p *Parameters) *volume.Reclaim { return &p.Reclaim }, volume.ParseReclaim)},
	{parameterWipe, "", into(func(p *Parameters) *volume.Wipe { return &p.Wipe }, volume.ParseWipe)},
	{parameterTrim, "", into(func(p *Parameters) *volume.Trim { return &p.Trim }, volume.ParseTrim)},
	{parameterOnNodeLoss, "", into(func(p *Parameters) *volume.OnNodeLoss { return &p.OnNodeLoss }, volume.ParseOnNodeLoss)},
	{volume.ParameterReadBps, "", into(func(p *Parameters) *volume.Bytes { return &p.IOLimits.ReadBps }, volume.ParseBps)},
	{volume.ParameterWriteBps, "", into(func(p *Parameters) *volume.Bytes { return &p.IOLimits.WriteBps }, volume.ParseBps)},
	{volume.ParameterReadIOPS, "", into(func(p *Parameters) *int64 { return &p.IOLimits.ReadIOPS }, volume.ParseIOPS)},
	{volume.ParameterWriteIOPS, "", into(func(p *Parameters) *int64 { return &p.IOLimits.WriteIOPS }, volume.ParseIOPS)},
	{pv.ParameterDoor, "", into(func(p *Parameters) *pv.Door { return &p.Door }, pv.ParseDoor)},
	{parameterPublishName, "", into(func(p *Parameters) *string { return &p.publishSecret.name }, parseTemplate(inName))},
	{parameterPublishNamespace, "", into(func(p *Parameters) *string { return &p.publishSecret.namespace }, parseTemplate(inNamespace))},
	{parameterExpandName, "", into(func(p *Parameters) *string { return &p.expandSecret.name }, parseTemplate(inName))},
	{parameterExpandNamespace, "", into(func(p *Parameters) *string { return &p.expandSecret.namespace }, parseTemplate(inNamespace))},
	{parameterCSIFSType, "", into(func(p *Parameters) *volume.FSType { return &p.FSType }, volume.ParseFSType)},
}

// into returns the parse function of a parameter that sets one field of Parameters.
func into[T any](of func(*Parameters) *T, parse func(field, s string) (T, error)) func(*Parameters, string, string) error {
	return func(p *Parameters, field, text string) error {
		v, err := parse(field, text)
		if err == nil {
			*of(p) = v
		}
		return err
	}
}

// knownParameters returns the options that a class may set, and classParameters.
func knownParameters() []parameter {
	var all []parameter
	for _, o := range volume.Options() {
		if o.Class {
			all = append(all, parameter{o.Name, o.Layout, func(p *Parameters, _, text string) error { return o.Parse(&p.Spec, text) }})
		}
	}
	return append(all, classParameters[:]...)
}

// ParseParameters parses the parameters of a StorageClass. An unknown parameter is an error, because
// somebody relies on it. The error is a *controlplane.Refusal that names every problem.
func ParseParameters(given map[string]string) (Parameters, error) {
	out := Parameters{
		Spec:    volume.Spec{Group: volume.DefaultGroup, Layout: volume.Linear, Kind: volume.Claim},
		Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone, Trim: volume.TrimAuto, OnNodeLoss: volume.OnNodeLossKeep,
	}
	var wrong controlplane.Problems
	known := knownParameters()
	checkKnown(known, given, &wrong)
	for _, p := range known {
		if text, there := given[p.name]; there {
			wrong.Check(p.parse(&out, p.name, text))
		}
	}
	if _, err := volume.ParseLayout(volume.OptionLayout, given[volume.OptionLayout]); err == nil {
		checkLayoutOptions(out.Layout, known, given, &wrong)
	}
	checkFSType(given, &wrong)
	if out.Kind == volume.Snapshot {
		wrong.Add(fmt.Sprintf("%s %q: is not for claims; leave it out, and take snapshots by VolumeSnapshots", volume.OptionKind, out.Kind))
	}
	checkThin(out, given, &wrong)
	checkDirectory(out, given, &wrong)
	checkEncrypted(&out, &wrong)
	if err := wrong.Refusal(); err != nil {
		return Parameters{}, err
	}
	return out, nil
}

// checkThin rejects parameters that a thin volume does not support.
func checkThin(p Parameters, given map[string]string, wrong *controlplane.Problems) {
	if p.Layout != volume.Thin {
		return
	}
	if _, named := given[volume.OptionThinPool]; !named {
		wrong.Add(fmt.Sprintf("%s: is required with layout %q; name the thin pool of the nodes (`flexlvm vg create --thin` makes %q)", volume.OptionThinPool, volume.Thin, "thinpool"))
	}
	if p.Wipe == volume.WipeZero {
		wrong.Add(fmt.Sprintf("%s %q: is not supported with layout %q: it would take room of the pool for all that was never written; use %q", parameterWipe, p.Wipe, volume.Thin, volume.WipeDiscard))
	}
}

func checkKnown(known []parameter, given map[string]string, wrong *controlplane.Problems) {
	var names, unknown []string
	for _, p := range known {
		names = append(names, p.name)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(names, name) {
			unknown = append(unknown, fmt.Sprintf("%q", name))
		}
	}
	if len(unknown) > 0 {
		wrong.Add(fmt.Sprintf("unknown parameter %s; the known ones are %s", strings.Join(unknown, ", "), strings.Join(names, ", ")))
	}
}

// checkLayoutOptions rejects parameters of other layouts: they would be ignored silently, although
// somebody relies on them.
func checkLayoutOptions(layout volume.Layout, known []parameter, given map[string]string, wrong *controlplane.Problems) {
	for _, p := range known {
		if _, there := given[p.name]; there && p.layout != "" && p.layout != layout {
			wrong.Add(fmt.Sprintf("%s: belongs to layout %q, and the layout is %q; leave it out", p.name, p.layout, layout))
		}
	}
}

// checkFSType rejects a class that names two different file systems.
func checkFSType(given map[string]string, wrong *controlplane.Problems) {
	ours, there := given[volume.OptionFSType]
	csi, too := given[parameterCSIFSType]
	if !there || !too {
		return
	}
	a, err := volume.ParseFSType(volume.OptionFSType, ours)
	b, other := volume.ParseFSType(parameterCSIFSType, csi)
	if err == nil && other == nil && a != b {
		wrong.Add(fmt.Sprintf("%s %q and %s %q: name two file systems; leave one of them out", volume.OptionFSType, ours, parameterCSIFSType, csi))
	}
}
