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
	volume.OptionMirrors, volume.OptionInodes, parameterReclaim, parameterWipe, parameterOnNodeLoss,
	parameterReadBps, parameterWriteBps, parameterReadIOPS, parameterWriteIOPS,
	parameterFSType, parameterCSIFSType,
}

// layoutOf says which layout a parameter belongs to.
var layoutOf = map[string]volume.Layout{
	volume.OptionThinPool:  volume.Thin,
	volume.OptionStripes:   volume.Striped,
	volume.OptionStripeKiB: volume.Striped,
	volume.OptionMirrors:   volume.Raid1,
}

// Parameters is a StorageClass as its volumes see it.
type Parameters struct {
	Group      volume.Group
	Layout     volume.Layout
	Stripes    int   // 0, and so the next two: the layout's default
	StripeKiB  int   // striped
	Mirrors    int   // raid1
	Inodes     int64 // 0: no limit
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
	if inodes, ok := given[volume.OptionInodes]; ok {
		out.Inodes, err = volume.ParseInodes(volume.OptionInodes, inodes)
		wrong.check(err)
	}
	out.Reclaim, err = volume.ParseReclaim(parameterReclaim, given[parameterReclaim])
	wrong.check(err)
	out.Wipe, err = volume.ParseWipe(parameterWipe, given[parameterWipe])
	wrong.check(err)
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

func parseIOLimits(given map[string]string, wrong *problems) (out volume.IOLimits) {
	for _, p := range []struct {
		name string
		into *volume.Bytes
	}{{parameterReadBps, &out.ReadBps}, {parameterWriteBps, &out.WriteBps}} {
		if text, ok := given[p.name]; ok {
			rate, err := volume.ParseBps(p.name, text)
			wrong.check(err)
			*p.into = rate
		}
	}
	for _, p := range []struct {
		name string
		into *int64
	}{{parameterReadIOPS, &out.ReadIOPS}, {parameterWriteIOPS, &out.WriteIOPS}} {
		if text, ok := given[p.name]; ok {
			rate, err := volume.ParseIOPS(p.name, text)
			wrong.check(err)
			*p.into = rate
		}
	}
	return out
}

// readNumber reads a parameter that may be left out.
func readNumber(given map[string]string, name string, parse func(field, s string) (int, error), into *int, wrong *problems) {
	text, ok := given[name]
	if !ok {
		return
	}
	var err error
	*into, err = parse(name, text)
	wrong.check(err)
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
