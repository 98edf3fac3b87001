package volume

import "fmt"

// Consequence describes what becomes of a volume that a person has set to state to, Retained or Unreferenced.
func Consequence(to State, reclaim Reclaim, name Name) string {
	switch {
	case to == Retained:
		return "it stays until somebody undeletes or forgets it"
	case reclaim == ReclaimImmediate:
		return "its class says reclaim: immediate, so the node daemon removes it in its next round"
	}
	return fmt.Sprintf("it is evicted when its room is needed; until then `flexlvm volumes undelete %s` restores it", name)
}
