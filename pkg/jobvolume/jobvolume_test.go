package jobvolume_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/pkg/jobvolume"
)

func volume(t *testing.T, worker int) jobvolume.Volume {
	t.Helper()
	v, err := jobvolume.New(t.TempDir(), worker)
	require.NoError(t, err)
	return v
}

func TestPaths(t *testing.T) {
	v, err := jobvolume.New("/persistent/", 7)
	require.NoError(t, err)
	require.Equal(t, 7, v.Worker())
	require.Equal(t, "/persistent", v.JobDirPath())
	require.Equal(t, "/persistent/worker-7", v.WorkerDirPath())
	require.Equal(t, "/persistent/logs/worker-7.log", v.LogFileName())
}

func TestFromEnvironment(t *testing.T) {
	t.Setenv(jobvolume.EnvDir, "")
	t.Setenv(jobvolume.EnvWorker, "12")
	v, err := jobvolume.FromEnvironment()
	require.NoError(t, err)
	require.Equal(t, "/persistent/worker-12", v.WorkerDirPath())
	t.Setenv(jobvolume.EnvDir, "/elsewhere")
	v, err = jobvolume.FromEnvironment()
	require.NoError(t, err)
	require.Equal(t, "/elsewhere", v.JobDirPath())

	for dir, index := range map[string]string{"/a": "", "/b": "x", "/c": "-1", "relative": "1"} {
		t.Setenv(jobvolume.EnvDir, dir)
		t.Setenv(jobvolume.EnvWorker, index)
		_, err := jobvolume.FromEnvironment()
		require.ErrorContains(t, err, "job volume: ")
	}
}

func TestWithoutVolume(t *testing.T) {
	v, err := jobvolume.New(filepath.Join(t.TempDir(), "nothing"), 0)
	require.NoError(t, err)
	there, err := v.JobDirExists()
	require.NoError(t, err)
	require.False(t, there)
	there, err = v.WorkerDirExists()
	require.NoError(t, err)
	require.False(t, there)
	for _, ask := range []func() (string, error){v.JobDir, v.WorkerDir, v.LogFile} {
		_, err := ask()
		require.ErrorIs(t, err, jobvolume.ErrNoVolume)
	}
	_, err = v.OpenLog()
	require.ErrorIs(t, err, jobvolume.ErrNoVolume)
	require.NoDirExists(t, v.JobDirPath(), "nothing is made where no volume is")
}

func TestDirectoriesAreMadeOnFirstUse(t *testing.T) {
	v := volume(t, 3)
	there, err := v.WorkerDirExists()
	require.NoError(t, err)
	require.False(t, there)
	require.NoDirExists(t, filepath.Dir(v.LogFileName()))
	for range 2 {
		dir, err := v.WorkerDir()
		require.NoError(t, err)
		require.Equal(t, v.WorkerDirPath(), dir)
		there, err = v.WorkerDirExists()
		require.NoError(t, err)
		require.True(t, there)
	}
	for i := range 2 { // a restarted worker continues its log
		log, err := v.OpenLog()
		require.NoError(t, err)
		_, err = fmt.Fprintln(log, i)
		require.NoError(t, err)
		require.NoError(t, log.Close())
	}
	content, err := os.ReadFile(v.LogFileName())
	require.NoError(t, err)
	require.Equal(t, "0\n1\n", string(content))
}

func TestSomethingInTheWay(t *testing.T) {
	v := volume(t, 0)
	require.NoError(t, os.WriteFile(v.WorkerDirPath(), nil, 0o644))
	_, err := v.WorkerDir()
	require.ErrorContains(t, err, "is not a directory")
	_, err = v.WorkerDirExists()
	require.ErrorContains(t, err, "is not a directory")
	require.NoError(t, os.WriteFile(filepath.Join(v.JobDirPath(), "logs"), nil, 0o644))
	_, err = v.OpenLog()
	require.ErrorContains(t, err, "is not a directory")
}

func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	errs := make(chan error, 400)
	for i := range 200 {
		all.Go(func() {
			v, err := jobvolume.New(dir, i%50)
			if err == nil {
				_, err = v.WorkerDir()
			}
			errs <- err
			log, err := v.OpenLog()
			if err == nil {
				err = log.Close()
			}
			errs <- err
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 51)
}
