package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConsequence(t *testing.T) {
	require.Equal(t, "it stays until somebody undeletes or forgets it", Consequence(Retained, ReclaimImmediate, "pvc-1"))
	require.Equal(t, "its class says reclaim: immediate, so the node daemon removes it in its next round", Consequence(Unreferenced, ReclaimImmediate, "pvc-1"))
	require.Equal(t, "it is evicted when its room is needed; until then `flexlvm volumes undelete pvc-1` restores it", Consequence(Unreferenced, ReclaimLazy, "pvc-1"))
}
