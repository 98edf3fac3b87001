package ext4

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A copy is mounted before it gets its UUID. tune2fs demands a check of a file system that was mounted
// since the last check, unless it has metadata_csum_seed. This test runs the programs of this machine.
func TestSetUUIDOfWhatWasMounted(t *testing.T) {
	host := command.New("", silent()).Killable
	for name, seed := range map[string]string{"of flexlvm": "metadata_csum_seed", "of a person": "^metadata_csum_seed"} {
		t.Run(name, func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "image")
			require.NoError(t, os.WriteFile(image, nil, 0o600))
			require.NoError(t, os.Truncate(image, int64(200*volume.MiB)))
			runProgram(t, host, "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-O", "metadata_csum,quota,project,"+seed, image)
			runProgram(t, host, "debugfs", "-w", "-R", "ssv lastcheck 20200101000000", image)
			runProgram(t, host, "debugfs", "-w", "-R", "ssv mtime 20200102000000", image)
			require.NoError(t, SetUUID(t.Context(), host, image, uuid))
			require.NoError(t, SetUUID(t.Context(), host, image, uuid), "it may be repeated")
			runProgram(t, host, "e2fsck", "-fn", image)
			for _, at := range []volume.Bytes{primaryAt, group} {
				require.Equal(t, uuid, superblockOf(t, image, at).UUID, "at %s", at)
			}
		})
	}
}

func runProgram(t *testing.T, host exec.Interface, name string, args ...string) {
	t.Helper()
	out, err := host.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func superblockOf(t *testing.T, image string, at volume.Bytes) Superblock {
	t.Helper()
	f, err := os.Open(image)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	sb, err := readAt(f, at)
	require.NoError(t, err)
	return sb
}

// tune2fs reports on standard output that a file system must be checked first, so the error contains that output.
func TestSetUUIDSaysWhyNot(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tune2fs"), []byte("#!/bin/sh\necho Please run e2fsck.\nexit 1\n"), 0o700))
	require.ErrorContains(t, SetUUID(t.Context(), command.New(dir, silent()).Killable, "/dev/mapper/flexlvm-a", uuid), "Please run e2fsck.")
}

func silent() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}
