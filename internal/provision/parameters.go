package provision

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// DefaultGroup is the volume group of a class that names none.
const DefaultGroup = "flexlvm"

// Parameters of a StorageClass beyond those that are options of a volume too.
const (
	parameterReclaim    = "reclaim"
	parameterWipe       = "wipe"
	parameterOnNodeLoss = "onNodeLoss"
	parameterRatio      = "overprovisionRatio"
	parameterReadBps    = "readBps"
	parameterWriteBps   = "writeBps"
	parameterReadIOPS   = "readIops"
	parameterWriteIOPS  = "writeIops"
	parameterFSType     = "fsType"
	// parameterCSIFSType is how classes of CSI drivers name the file system; it is
	// taken so that a class can be moved over by changing its provisioner.
	parameterCSIFSType = "csi.storage.k8s.io/fstype"
)

// knownParameters in the order in which people are told of them.
var knownParameters = []string{
	volume.OptionGroup, volume.OptionLayout, volume.OptionThinPool, volume.OptionStripes, volume.OptionStripeKiB,
	volume.OptionMirrors, parameterRatio, volume.OptionInodes, volume.OptionKind, parameterReclaim, parameterWipe, parameterOnNodeLoss,
	parameterReadBps, parameterWriteBps, parameterReadIOPS, parameterWriteIOPS,
	parameterFSType, parameterCSIFSType,
}

// layoutOf says which layout a parameter belongs to.
var layoutOf = map[string]volume.Layout{
	volume.OptionThinPool:  volume.Thin,
	parameterRatio:         volume.Thin,
	volume.OptionStripes:   volume.Striped,
	volume.OptionStripeKiB: volume.Striped,
	volume.OptionMirrors:   volume.Raid1,
}

// Parameters is a StorageClass as its volumes see it.
type Parameters struct {
	Group      volume.Group
	Layout     volume.Layout
	Stripes    int // 0, and so the next two: the layout's default
	StripeKiB  int // striped
	Mirrors    int // raid1
	ThinPool   volume.Name
	Ratio      volume.Ratio // thin; 0: 1
	Inodes     int64        // 0: no limit
	Kind       volume.Kind  // what its volumes are for
	Reclaim    volume.Reclaim
	Wipe       volume.Wipe
	OnNodeLoss volume.OnNodeLoss
	IOLimits   volume.IOLimits // of each pod that uses the volume
}

// ParseParameters reads the parameters of a StorageClass. A parameter that is
// not known is an error, for it is a word that somebody relies on. The error is
// a *Refusal that names everything that is wrong.
func ParseParameters(given map[string]string) (Parameters, error) {
	var (
		out   Parameters
		wrong problems
		err   error
	)
	checkKnown(given, &wrong)

	group, named := given[volume.OptionGroup]
	if !named {
		group = DefaultGroup
	}
	out.Group, err = volume.ParseGroup(volume.OptionGroup, group)
	wrong.check(err)
	out.Layout, err = volume.ParseLayout(volume.OptionLayout, given[volume.OptionLayout])
	wrong.check(err)
	if err == nil {
		checkLayoutOptions(out.Layout, given, &wrong)
	}
	readNumber(given, volume.OptionStripes, volume.ParseStripes, &out.Stripes, &wrong)
	readNumber(given, volume.OptionStripeKiB, volume.ParseStripeKiB, &out.StripeKiB, &wrong)
	readNumber(given, volume.OptionMirrors, volume.ParseMirrors, &out.Mirrors, &wrong)
	readNumber(given, volume.OptionThinPool, volume.ParseThinPool, &out.ThinPool, &wrong)
	readNumber(given, parameterRatio, volume.ParseRatio, &out.Ratio, &wrong)
	readNumber(given, volume.OptionInodes, volume.ParseInodes, &out.Inodes, &wrong)
	out.Kind, err = volume.ParseKind(volume.OptionKind, given[volume.OptionKind])
	wrong.check(err)
	out.Reclaim, err = volume.ParseReclaim(parameterReclaim, given[parameterReclaim])
	wrong.check(err)
	out.Wipe, err = volume.ParseWipe(parameterWipe, given[parameterWipe])
	wrong.check(err)
	checkThin(out, given, &wrong)
	out.OnNodeLoss, err = volume.ParseOnNodeLoss(parameterOnNodeLoss, given[parameterOnNodeLoss])
	wrong.check(err)
	out.IOLimits = parseIOLimits(given, &wrong)
	for _, name := range []string{parameterFSType, parameterCSIFSType} {
		wrong.check(checkFSType(name, given[name]))
	}
	if err := wrong.refusal(); err != nil {
		return Parameters{}, err
	}
	return out, nil
}

// checkThin refuses what a thin volume cannot be.
func checkThin(p Parameters, given map[string]string, wrong *problems) {
	if p.Layout != volume.Thin {
		return
	}
	if _, named := given[volume.OptionThinPool]; !named {
		wrong.add(fmt.Sprintf("%s: is required with layout %q; name the thin pool of the nodes (`flexlvm vg create --thin` makes %q)", volume.OptionThinPool, volume.Thin, "thinpool"))
	}
	if p.Wipe == volume.WipeZero {
		wrong.add(fmt.Sprintf("%s %q: is not supported with layout %q: it would take room of the pool for all that was never written; use %q", parameterWipe, p.Wipe, volume.Thin, volume.WipeDiscard))
	}
}

// pool is where the volumes are cut from.
func (p Parameters) pool() volume.PoolName { return volume.PoolOf(p.Group, p.ThinPool) }

func parseIOLimits(given map[string]string, wrong *problems) (out volume.IOLimits) {
	readNumber(given, parameterReadBps, volume.ParseBps, &out.ReadBps, wrong)
	readNumber(given, parameterWriteBps, volume.ParseBps, &out.WriteBps, wrong)
	readNumber(given, parameterReadIOPS, volume.ParseIOPS, &out.ReadIOPS, wrong)
	readNumber(given, parameterWriteIOPS, volume.ParseIOPS, &out.WriteIOPS, wrong)
	return out
}

// readNumber reads a parameter that may be left out.
func readNumber[T any](given map[string]string, name string, parse func(field, s string) (T, error), into *T, wrong *problems) {
	text, ok := given[name]
	if !ok {
		return
	}
	var err error
	*into, err = parse(name, text)
	wrong.check(err)
}

// spec is what every volume of these parameters is, but for its size and its name.
func (p Parameters) spec() volume.Spec {
	return volume.Spec{
		Group: p.Group, Layout: p.Layout, Stripes: p.Stripes, StripeKiB: p.StripeKiB, Mirrors: p.Mirrors, ThinPool: p.ThinPool, Ratio: p.Ratio, Inodes: p.Inodes, Kind: p.Kind,
	}
}

func checkKnown(given map[string]string, wrong *problems) {
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(knownParameters, name) {
			unknown = append(unknown, fmt.Sprintf("%q", name))
		}
	}
	if len(unknown) > 0 {
		wrong.add(fmt.Sprintf("unknown parameter %s; the known ones are %s",
			strings.Join(unknown, ", "), strings.Join(knownParameters, ", ")))
	}
}

// checkLayoutOptions refuses what belongs to another layout: it would be
// dropped in silence, and somebody meant something by it.
func checkLayoutOptions(layout volume.Layout, given map[string]string, wrong *problems) {
	for _, name := range slices.Sorted(maps.Keys(layoutOf)) {
		if _, ok := given[name]; ok && layoutOf[name] != layout {
			wrong.add(fmt.Sprintf("%s: belongs to layout %q, and the layout is %q; leave it out", name, layoutOf[name], layout))
		}
	}
}

func checkFSType(field, fsType string) error {
	if fsType == "" || fsType == pv.FSType {
		return nil
	}
	return &volume.FieldError{
		Field:  field,
		Value:  fsType,
		Reason: fmt.Sprintf("is not supported; use %q or leave it out: sizes are exact because of its project quota", pv.FSType),
	}
}
