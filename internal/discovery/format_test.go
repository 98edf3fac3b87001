package discovery

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	testingexec "k8s.io/utils/exec/testing"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
)

// A file system on a device is called the same as where it is mounted.
func TestFilesystemOnADevice(t *testing.T) {
	for out, want := range map[string]string{
		"DEVNAME=/dev/x\nUUID=u-1\nTYPE=ext4\n": "fs-u-1",
		"DEVNAME=/dev/x\nUUID_SUB=u-1\n":        "",
		"DEVNAME=/dev/x\nPTTYPE=gpt\n":          "",
	} {
		is, err := contentOf(t.Context(), commandtest.Func(func(...string) (string, error) { return out, nil }), "/dev/x")
		require.NoError(t, err)
		require.Equal(t, want, is.filesystem(), out)
	}
}

// A device that kubelet would format is offered only if it is blank.
func TestFormatsData(t *testing.T) {
	nothing := testingexec.FakeExitError{Status: blkidNothing}
	discarded := Entry{Volume: "pv-2", Cleaned: []string{"pv-1", "pv-2"}, Erasure: Discard}
	handedOut, zeroed := discarded, discarded
	handedOut.Volume, zeroed.Erasure = "pv-3", Zero
	const size, midst = 16 << 20, 8 << 20
	for name, c := range map[string]struct {
		blkid string
		err   error
		at    int64 // offset of a byte that is not zero; -1: none
		class Class
		entry Entry
		says  string
	}{
		"blank":                          {err: nothing, at: -1},
		"a file system":                  {blkid: "DEVNAME=/dev/x\nTYPE=ext4\n", at: 1024},
		"a table of partitions":          {blkid: "DEVNAME=/dev/x\nPTTYPE=gpt\n", at: 512},
		"data":                           {err: nothing, at: 1024, says: "kubelet would format it"},
		"data in the midst":              {err: nothing, at: midst, says: "not zero in the MiB at"},
		"data in a partition":            {blkid: "DEVNAME=/dev/x\n", at: 1024, says: "blkdiscard --zeroout"},
		"data, of volumeMode Block":      {err: nothing, at: 1024, class: Class{Block: true}},
		"data, after a disk was zeroed":  {err: nothing, at: midst, entry: zeroed, says: "kubelet would format it"},
		"what discarding leaves":         {err: nothing, at: midst, entry: discarded},
		"data, since it was discarded":   {err: nothing, at: 1024, entry: discarded, says: "kubelet would format it"},
		"handed out since the discard":   {err: nothing, at: midst, entry: handedOut, says: "kubelet would format it"},
		"blkid is of two minds":          {err: testingexec.FakeExitError{Status: 8}, at: -1, says: "look for a file system on"},
		"blkid is of two minds, of data": {err: testingexec.FakeExitError{Status: 8}, at: 1024, says: "look for a file system on"},
	} {
		t.Run(name, func(t *testing.T) {
			device := filepath.Join(t.TempDir(), "disk")
			f, err := os.Create(device)
			require.NoError(t, err)
			require.NoError(t, f.Truncate(size))
			if c.at >= 0 {
				_, err = f.WriteAt([]byte{1}, c.at)
				require.NoError(t, err)
			}
			require.NoError(t, f.Close())
			run := commandtest.Func(func(argv ...string) (string, error) {
				require.Equal(t, []string{"blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-s", "UUID", "-o", "export", "--", device}, argv)
				return c.blkid, c.err
			})
			is, err := contentOf(t.Context(), run, device)
			if err == nil {
				err = checkKubeletFormat(device, is, c.class, c.entry)
			}
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
		})
	}
}
