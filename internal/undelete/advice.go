package undelete

import (
	"fmt"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Command returns the command that restores a volume on its node, with the flags that it requires; empty if the volume
// cannot be restored.
func Command(v inventory.Volume) string {
	if CheckRestorable(v) != nil {
		return ""
	}
	command := fmt.Sprintf("flexlvm volumes undelete %s", v.Name)
	if v.Encrypted {
		return command + " --door csi --secret NAMESPACE/NAME"
	}
	if v.FSType == volume.Raw {
		return command + " --door csi"
	}
	return command
}

// Consequence describes what becomes of a volume that a person has set to state to, Retained or Unreferenced.
func Consequence(to volume.State, v inventory.Volume) string {
	switch {
	case to == volume.Retained:
		return "it stays until somebody undeletes or forgets it"
	case v.Reclaim == volume.ReclaimImmediate:
		return "its class says reclaim: immediate, so the node daemon removes it in its next round"
	}
	text := "it is evicted when its room is needed"
	v.State = to
	if command := Command(v); command != "" {
		text += fmt.Sprintf("; until then `%s` restores it", command)
	}
	return text
}
