package built

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm"
)

func TestOnce(t *testing.T) {
	cache := t.TempDir()
	t.Setenv(vm.CacheEnv, cache)
	const key = "0123456789abcdef"
	builds := 0
	build := func(dir string) error {
		builds++
		return os.WriteFile(filepath.Join(dir, "part"), nil, 0o600)
	}

	_, err := Once(t.Context(), "thing", key, func(dir string) error {
		return errors.Join(build(dir), errors.New("no room"))
	})
	require.EqualError(t, err, "build thing: no room")
	left, err := os.ReadDir(cache)
	require.NoError(t, err)
	require.Len(t, left, 1, "what was cut short must not be taken for done")
	require.Equal(t, "thing.lock", left[0].Name())

	for range 2 {
		dir, err := Once(t.Context(), "thing", key, build)
		require.NoError(t, err)
		require.FileExists(t, filepath.Join(dir, "part"))
	}
	require.Equal(t, 2, builds)
}

func TestModule(t *testing.T) {
	t.Setenv(vm.CacheEnv, t.TempDir())
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.org/thing\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "say"), 0o755))
	for _, word := range []string{"one", "another"} {
		source := "package main\n\nfunc main() { print(\"" + word + "\") }\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "say/main.go"), []byte(source), 0o600))
		program, err := Module(t.Context(), dir, "say", "./say", t.Output())
		require.NoError(t, err)
		said, err := exec.Command(program).CombinedOutput()
		require.NoError(t, err)
		require.Equal(t, word, string(said))
	}
}

func TestLibraries(t *testing.T) {
	shell, err := exec.LookPath("sh")
	require.NoError(t, err)
	libraries, err := Libraries(t.Context(), shell)
	require.NoError(t, err)
	require.NotEmpty(t, libraries)
	for _, library := range libraries {
		require.FileExists(t, library)
	}
	_, err = Libraries(t.Context(), filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, err, "list the libraries of")
}
