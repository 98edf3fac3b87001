package fetch

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// If a checksum is required, files that an earlier run accepted without one are fetched again,
// whatever state that run has left.
func TestChecksumIsRequiredOfWhatIsThere(t *testing.T) {
	for name, c := range map[string]struct {
		sync bool
		left func(t *testing.T, b *versionBed)
	}{
		"sync": {true, nil},
		"not complete": {false, func(t *testing.T, b *versionBed) {
			require.NoError(t, os.Remove(filepath.Join(b.root, destination.CompleteFile)))
		}},
		"only received": {false, leaveOnlyNotes},
		"version":       {true, nil},
		"archives":      {true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newVersionBed(t)
			content := []byte("content")
			load := func(etag, mode string) error {
				b.fake.set("set/a", fakeObject{data: content, etag: etag})
				config := b.config("s3://bucket/set/")
				config.Checksum, config.Sync = mode, c.sync
				if name == "archives" {
					config.Store = packedStore{Store: config.Store, archives: func() {}}
				}
				var err error
				if name == "version" {
					_, err = RunVersions(t.Context(), b.root, config, NewProgress(ReadyAfter{}))
				} else {
					_, err = Run(t.Context(), config, NewProgress(ReadyAfter{}))
				}
				return err
			}
			require.NoError(t, load("of no kind", ChecksumNone))
			if c.left != nil {
				c.left(t, b)
			}
			b.fake.got()
			require.ErrorIs(t, load("of no kind", ChecksumRequired), store.ErrWrongSum)
			require.NotZero(t, b.fake.got()["set/a"])
			require.NoError(t, load(md5Hex(content), ChecksumRequired))
			require.NoError(t, load(md5Hex(content), ChecksumRequired))
			require.Equal(t, map[string]int{"set/a": 1}, b.fake.got(), "what was verified is trusted")
		})
	}
}

// A complete destination is not fetched again because a checksum is now required: all nodes would fetch
// the whole dataset at the same time.
func TestChecksumIsNotRequiredOfWhatIsComplete(t *testing.T) {
	b := newBed(t)
	b.fake.set("set/a", fakeObject{data: []byte("content"), etag: "of no kind"})
	for _, mode := range []string{ChecksumNone, ChecksumRequired} {
		b.change = func(c *Config) { c.Checksum = mode }
		_, _, err := b.run("s3://bucket/set/")
		require.NoError(t, err)
	}
	require.Equal(t, map[string]int{"set/a": 1}, b.fake.got())
}

// leaveOnlyNotes leaves the state of a run that was killed after it renamed the files and
// before it wrote the manifest.
func leaveOnlyNotes(t *testing.T, b *versionBed) {
	t.Helper()
	var notes []byte
	for _, e := range b.mustHave(map[string][]byte{"a": []byte("content")}) {
		crc := store.NewCRC64()
		_, _ = crc.Write([]byte("content"))
		n := noteOf(e.object(), "0/gone", store.Span{Length: e.Bytes}, binary.BigEndian.Uint64(crc.Sum(nil)), store.Check{Kind: e.Check})
		line, err := json.Marshal(n)
		require.NoError(t, err)
		notes = append(append(notes, line...), '\n')
	}
	require.NoError(t, os.Remove(filepath.Join(b.root, destination.CompleteFile)))
	require.NoError(t, os.Truncate(filepath.Join(b.root, destination.ManifestFile), 0))
	require.NoError(t, os.WriteFile(filepath.Join(b.root, destination.JournalFile), notes, 0o600))
}
