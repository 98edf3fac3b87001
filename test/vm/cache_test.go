package vm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRelativeCacheIsInTheCheckout(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte(moduleLine), 0o644))
	inside := filepath.Join(root, "some/package")
	require.NoError(t, os.MkdirAll(inside, 0o755))
	t.Chdir(inside)
	elsewhere := t.TempDir()
	for env, want := range map[string]string{
		"":           filepath.Join(root, ".cache"),
		"../shared":  filepath.Join(filepath.Dir(root), "shared"),
		"kept/cache": filepath.Join(root, "kept/cache"),
		elsewhere:    elsewhere,
	} {
		t.Setenv(CacheEnv, env)
		dir, err := CacheDir()
		require.NoError(t, err)
		require.Equal(t, want, dir)
		require.DirExists(t, dir)
	}
}

func TestBuildOnceBuildsOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thing")
	var builds, waits atomic.Int32
	var callers sync.WaitGroup
	for range 5 {
		callers.Go(func() {
			err := buildOnce(t.Context(), path, func() { waits.Add(1) }, func(dir string) error {
				builds.Add(1)
				for begun := time.Now(); waits.Load() == 0 && time.Since(begun) < time.Minute; {
					time.Sleep(time.Millisecond)
				}
				_, err := os.Stat(path)
				require.ErrorIs(t, err, os.ErrNotExist, "visible before it is complete")
				return os.WriteFile(filepath.Join(dir, "file"), nil, 0o644)
			})
			require.NoError(t, err)
			require.FileExists(t, filepath.Join(path, "file"))
		})
	}
	callers.Wait()
	require.EqualValues(t, 1, builds.Load())
	require.Positive(t, waits.Load())
}

func TestBuildOnceLeavesNothingOfAFailedBuild(t *testing.T) {
	base := t.TempDir()
	path := filepath.Join(base, "thing")
	failure := errors.New("no luck")
	err := buildOnce(t.Context(), path, nil, func(dir string) error {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "half"), nil, 0o644))
		return failure
	})
	require.ErrorIs(t, err, failure)
	require.NoDirExists(t, path)
	require.NoDirExists(t, path+".tmp")
	require.NoError(t, buildOnce(t.Context(), path, nil, func(string) error { return nil }))
	require.DirExists(t, path)
}

func TestBuildOnceClearsWhatAKilledBuildLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "thing")
	require.NoError(t, os.MkdirAll(path+".tmp/rubbish", 0o755))
	require.NoError(t, buildOnce(t.Context(), path, nil, func(string) error { return nil }))
	require.NoDirExists(t, filepath.Join(path, "rubbish"))
}

func TestLockWaitsNoLongerThanItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), path, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	waited := false
	_, err = Lock(ctx, path, func() { waited = true })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.True(t, waited)
	unlock()
	unlock, err = Lock(t.Context(), path, nil)
	require.NoError(t, err)
	unlock()
}

func TestHashFilesSeesNamesAndContents(t *testing.T) {
	base := t.TempDir()
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(base, name), []byte(content), 0o644))
	}
	hash := func(words ...string) string {
		h, err := hashFiles(base, []string{"."}, words...)
		require.NoError(t, err)
		return h
	}
	write("a", "1")
	first := hash()
	require.Equal(t, first, hash())
	require.NotEqual(t, first, hash("word"))
	write("a", "2")
	require.NotEqual(t, first, hash())
	require.NoError(t, os.Rename(filepath.Join(base, "a"), filepath.Join(base, "b")))
	write("b", "1")
	require.NotEqual(t, first, hash())
	_, err := hashFiles(base, []string{"missing"})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestPruneRemovesOnlyWhatIsOld(t *testing.T) {
	base := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{"x-old": 2 * time.Hour, "x-new": 0, "y-old": 2 * time.Hour} {
		path := filepath.Join(base, name)
		require.NoError(t, os.Mkdir(path, 0o755))
		require.NoError(t, os.Chtimes(path, now.Add(-age), now.Add(-age)))
	}
	require.NoError(t, prune(filepath.Join(base, "x-*"), now.Add(-time.Hour)))
	require.NoDirExists(t, filepath.Join(base, "x-old"))
	require.DirExists(t, filepath.Join(base, "x-new"))
	require.DirExists(t, filepath.Join(base, "y-old"))
}

func TestRunDirsOfTheDeadAreRemoved(t *testing.T) {
	t.Setenv(CacheEnv, t.TempDir())
	alive, err := NewRunDir(t.Context(), "vm")
	require.NoError(t, err)
	base := filepath.Dir(alive.Path)
	abandoned := filepath.Join(base, "vm-1-abandoned")
	foreign := filepath.Join(base, "other-1")
	for _, dir := range []string{abandoned, foreign} {
		require.NoError(t, os.Mkdir(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "disk0"), nil, 0o644))
	}
	second, err := NewRunDir(t.Context(), "vm")
	require.NoError(t, err)
	require.NoDirExists(t, abandoned)
	require.DirExists(t, foreign)
	require.DirExists(t, alive.Path)
	require.NotEqual(t, alive.Path, second.Path)
	require.NoError(t, alive.Remove())
	require.NoError(t, second.Remove())
	require.NoDirExists(t, alive.Path)
}
