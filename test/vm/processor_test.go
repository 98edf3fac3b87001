package vm

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNodeCPUs(t *testing.T) {
	for text, want := range map[string]int{"": 1, "2": 2, "16": 16} {
		t.Setenv(CPUsEnv, text)
		got, err := NodeCPUs(1)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"0", "-1", "two", "2 "} {
		t.Setenv(CPUsEnv, text)
		_, err := NodeCPUs(1)
		require.ErrorContains(t, err, CPUsEnv, text)
	}
}

// Machines share the processors evenly, and release them when they end.
func TestHoldProcessor(t *testing.T) {
	dir := t.TempDir()
	allowed, err := allowedProcessors()
	require.NoError(t, err)
	require.NotEmpty(t, allowed)
	hold := func() (int, *os.File) {
		processor, held, err := holdProcessor(dir)
		require.NoError(t, err)
		return processor, held
	}
	var files []*os.File
	for range 2 {
		for _, want := range allowed {
			processor, held := hold()
			require.Equal(t, want, processor)
			files = append(files, held)
		}
	}
	last := len(allowed) - 1
	require.NoError(t, files[last].Close())
	processor, held := hold()
	require.Equal(t, allowed[last], processor)
	files[last] = held
	closeAll(files)
}
