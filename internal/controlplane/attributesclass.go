package controlplane

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// unlimited is the value of a parameter that lifts a limit. It is needed to lift all limits, because a
// VolumeAttributesClass has at least one parameter.
const unlimited = "max"

// metadataPrefix begins the keys by which CSI's resizer adds the claim and PersistentVolume to the
// parameters (--extra-modify-metadata).
const metadataPrefix = "csi.storage.k8s.io/"

// limitParameters are the parameters that a VolumeAttributesClass of flexlvm may have, in the order in
// which error messages list them.
var limitParameters = []struct {
	name  string
	parse func(l *volume.IOLimits, field, text string) error
}{
	{volume.ParameterReadBps, limit(func(l *volume.IOLimits) *volume.Bytes { return &l.ReadBps }, volume.ParseBps)},
	{volume.ParameterWriteBps, limit(func(l *volume.IOLimits) *volume.Bytes { return &l.WriteBps }, volume.ParseBps)},
	{volume.ParameterReadIOPS, limit(func(l *volume.IOLimits) *int64 { return &l.ReadIOPS }, volume.ParseIOPS)},
	{volume.ParameterWriteIOPS, limit(func(l *volume.IOLimits) *int64 { return &l.WriteIOPS }, volume.ParseIOPS)},
}

func limit[T any](of func(*volume.IOLimits) *T, parse func(field, s string) (T, error)) func(*volume.IOLimits, string, string) error {
	return func(l *volume.IOLimits, field, text string) error {
		v, err := parse(field, text)
		if err == nil {
			*of(l) = v
		}
		return err
	}
}

// ParseAttributes parses the parameters of a VolumeAttributesClass. They replace all limits of a
// volume: an unnamed limit is lifted, so that the class shows what is in force. The error is a *Refusal
// that names every problem.
func ParseAttributes(given map[string]string) (volume.IOLimits, error) {
	var out volume.IOLimits
	var wrong Problems
	var known []string
	for _, p := range limitParameters {
		known = append(known, p.name)
		if text, there := given[p.name]; there && text != unlimited {
			wrong.Check(p.parse(&out, p.name, text))
		}
	}
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(known, name) && !strings.HasPrefix(name, metadataPrefix) {
			unknown = append(unknown, fmt.Sprintf("%q", name))
		}
	}
	if len(unknown) > 0 {
		wrong.Add(fmt.Sprintf("unknown parameter %s; a VolumeAttributesClass of flexlvm holds limits on IO: %s", strings.Join(unknown, ", "), strings.Join(known, ", ")))
	}
	if err := wrong.Refusal(); err != nil {
		return volume.IOLimits{}, err
	}
	return out, nil
}
