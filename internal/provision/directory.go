package provision

import (
	"fmt"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// checkDirectory rejects parameters that a directory volume does not support.
func checkDirectory(p Parameters, given map[string]string, wrong *controlplane.Problems) {
	if p.Layout != volume.Directory {
		return
	}
	if !p.TrustPods {
		wrong.Add(fmt.Sprintf("%s: must be \"true\" with layout %q: XFS cannot keep a pod that means harm in its volume's quota, which may take room that others were promised (docs/directory.md); set it where all pods of the class are trusted, or use another layout", parameterTrustPods, volume.Directory))
	}
	if _, named := given[volume.OptionDirectoryPool]; !named {
		wrong.Add(fmt.Sprintf("%s: is required with layout %q; name the directory pool of the nodes (`flexlvm directories create` makes it)", volume.OptionDirectoryPool, volume.Directory))
	}
	const shared = "its volumes are directories of a file system that they share; leave it out"
	refuse := func(field string, value any, set bool) {
		if set {
			wrong.Add(fmt.Sprintf("%s %q: does not belong to layout %q: %s", field, value, volume.Directory, shared))
		}
	}
	refuse(parameterWipe, p.Wipe, p.Wipe != volume.WipeNone)
	refuse(parameterTrim, p.Trim, p.Trim.Regular())
	refuse(volume.OptionFSType, p.FSType, p.FSType != volume.XFS)
	refuse(volume.OptionEncrypted, "true", p.Encrypted)
	refuse(volume.OptionKind, p.Kind, p.Kind == volume.Dataset)
	for _, name := range []string{volume.ParameterReadBps, volume.ParameterWriteBps, volume.ParameterReadIOPS, volume.ParameterWriteIOPS} {
		text, limited := given[name]
		refuse(name, text, limited)
	}
}

// checkIOLimits rejects IO limits, of whatever origin, on a volume without its own device.
func checkIOLimits(spec volume.Spec, limits volume.IOLimits) error {
	var wrong controlplane.Problems
	if spec.Layout == volume.Directory && !limits.IsZero() {
		wrong.Add(fmt.Sprintf("volumeAttributesClassName: limits IO, and layout %q has no limits on IO: its volumes share one device; leave it out, or use another class", volume.Directory))
	}
	return wrong.Refusal()
}
