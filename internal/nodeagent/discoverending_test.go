package nodeagent

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/discovery"
)

// A scan that still runs after its daemon has stopped saves and starts nothing, because the next daemon may be
// running already.
func TestClosedDiscovererSavesNothing(t *testing.T) {
	s := &discoverer{file: filepath.Join(t.TempDir(), "discovered.json"), closed: true}
	require.ErrorIs(t, s.saveLedger(discovery.Ledger{"naa.5000": {Path: "/mnt/fast/a"}}), errEnding)
	require.NoFileExists(t, s.file)
	require.Equal(t, errEnding.Error(), s.begin(t.Context(), nil, discoveredCase{found: &discovery.Found{Disk: "naa.5000"}}))
}
