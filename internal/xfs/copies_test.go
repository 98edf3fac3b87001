package xfs

import (
	"bytes"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestStartsOfGroups(t *testing.T) {
	// As `xfs_info` shows them: agsize in blocks of 4 KiB, of a device of 300 MiB and of
	// one that is striped over three disks.
	require.Equal(t, []volume.Bytes{19200 << 12, 38400 << 12, 57600 << 12}, Groups{Count: 4, Sizes: []volume.Bytes{300 * volume.MiB}}.starts())
	odd := Groups{Count: 4, Sizes: []volume.Bytes{301*volume.MiB + volume.Block}, Aligns: []volume.Bytes{0, 512, 128 * volume.KiB}}
	require.Equal(t, []volume.Bytes{19265 << 12, 19296 << 12, 38530 << 12, 38592 << 12, 57795 << 12, 57888 << 12}, odd.starts())
}

// sparse is a sparse device with superblocks at some offsets.
type sparse map[int64][]byte

func (s sparse) ReadAt(b []byte, at int64) (int, error) {
	clear(b)
	for start, content := range s {
		if at >= start && at < start+int64(len(content)) {
			copy(b, content[at-start:])
		}
	}
	return len(b), nil
}

func TestFindCopy(t *testing.T) {
	const uuid = "0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"
	whole, err := os.ReadFile("testdata/superblock")
	require.NoError(t, err)
	begun := bytes.Clone(whole)
	begun[offInProgress] = 1
	begun = seal(begun[:512])
	size := 300 * volume.MiB
	g := Groups{Count: 4, Sizes: []volume.Bytes{size}}
	first, last := int64(19200<<12), int64(57600<<12)

	for name, c := range map[string]struct {
		device sparse
		uuid   string
		at     int64
	}{
		"blank":                     {sparse{}, uuid, 0},
		"killed mkfs":               {sparse{first: begun, last: begun}, uuid, 0},
		"killed before it finished": {sparse{0: begun, first: begun, last: begun}, uuid, 0},
		"in use":                    {sparse{first: whole, last: whole}, uuid, first},
		"one copy is left":          {sparse{first: begun, last: whole}, uuid, last},
		"of an earlier volume":      {sparse{first: whole}, "11111111-1111-4111-8111-111111111111", 0},
		"no copy":                   {sparse{first + 4096: whole}, uuid, 0},
	} {
		at, err := FindCopy(c.device, size, c.uuid, g)
		if c.at == 0 {
			require.ErrorIs(t, err, ErrNoFilesystem, name)
			continue
		}
		require.NoError(t, err, name)
		require.EqualValues(t, c.at, at, name)
	}

	// A valid primary superblock determines where the copies are: this one is of 384 MiB.
	third := int64(3 * 24576 << 12)
	at, err := FindCopy(sparse{0: whole, first: begun, third: whole}, 384*volume.MiB, uuid, g)
	require.NoError(t, err)
	require.EqualValues(t, third, at)
	_, err = FindCopy(sparse{first: begun, third: whole}, 384*volume.MiB, uuid, g)
	require.ErrorIs(t, err, ErrNoFilesystem)
	_, err = FindCopy(sparse{0: whole, third: begun}, 384*volume.MiB, uuid, g)
	require.ErrorIs(t, err, ErrNoFilesystem, "mkfs alone had it")
	mounted := bytes.Clone(whole)
	mounted[offQuotas+1] = 0x48
	mounted = seal(mounted[:512])
	at, err = FindCopy(sparse{0: mounted, third: begun}, 384*volume.MiB, uuid, g)
	require.NoError(t, err)
	require.Zero(t, at, "the kernel keeps quotas")

	_, err = FindCopy(sparse{last: whole}, volume.Bytes(last), uuid, g)
	require.ErrorIs(t, err, ErrNoFilesystem, "beyond the end")
	_, err = FindCopy(broken{}, size, uuid, g)
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrNoFilesystem, "what cannot be read says nothing")
	_, err = FindCopy(io.NewSectionReader(sparse{}, 0, 1<<20), size, uuid, g)
	require.NotErrorIs(t, err, ErrNoFilesystem)
}
