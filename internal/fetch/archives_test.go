package fetch

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// Refused keys of an artifact are determined again, too. Those of the current version are not: it has the same content.
func TestArtifactWithRefusedKeys(t *testing.T) {
	for _, versions := range []bool{false, true} {
		b := newVersionBed(t)
		b.few("a")
		b.fake.put("set/x//y", []byte("b"))
		fetched := 0
		b.change = func(c *Config) {
			c.Source.URL, c.Sync, c.Store = "oci://registry/artifact", true, packedStore{Store: c.Store, archives: func() { fetched++ }}
		}
		load := func() protocol.Status {
			if versions {
				status, err := b.load()
				require.NoError(t, err)
				return status
			}
			progress := NewProgress(ReadyAfter{})
			_, err := Run(t.Context(), b.config("s3://bucket/set/"), progress)
			require.NoError(t, err)
			return progress.Status(time.Now())
		}
		require.EqualValues(t, 1, load().Refused)
		b.fake.delete("set/x//y")
		status := load()
		if versions {
			require.Equal(t, 1, fetched)
			require.EqualValues(t, 1, status.Refused)
			require.Contains(t, status.Message, "; 1 refused")
			continue
		}
		require.Equal(t, 2, fetched)
		require.Zero(t, status.Refused)
	}
}

// A next version with refused keys does not become the current one. Its artifact is downloaded once, not at each refresh.
func TestNextVersionOfAnArtifactWithRefusedKeys(t *testing.T) {
	b := newVersionBed(t)
	b.few("a")
	fetched, revision := 0, "sha256:a"
	b.change = func(c *Config) {
		c.Source.URL, c.Sync, c.Store = "oci://registry/artifact", true, packedStore{c.Store, func() { fetched++ }, revision}
	}
	load := func(refused int64) {
		t.Helper()
		status, err := b.load()
		require.NoError(t, err)
		require.Equal(t, refused, status.Refused)
	}
	load(0)
	revision = "sha256:b"
	b.few("b")
	b.fake.put("set/x//y", []byte("b"))
	for range 2 {
		load(1)
		require.Equal(t, 2, fetched)
		require.Equal(t, "1", b.current())
	}
	revision = "sha256:c"
	b.fake.delete("set/x//y")
	b.fake.put("set/c", []byte("c"))
	load(0)
	require.Equal(t, 3, fetched)
	require.Equal(t, "2", b.current())
}

// A mirror may know the tag of an artifact before it has all blobs. A missing one is requested again at each refresh,
// and the archives are fetched again only when it is there.
func TestNextVersionOfAnArtifactWithAMissingBlob(t *testing.T) {
	for name, first := range map[string]bool{"of the next version": false, "of the first version": true} {
		t.Run(name, func(t *testing.T) {
			b := newVersionBed(t)
			revision, missing, fetched := "sha256:a", first, 0
			b.change = func(c *Config) {
				c.Source.URL, c.Sync, c.Store = "oci://registry/artifact", true, packedStore{c.Store, func() { fetched++ }, revision}
			}
			b.fake.hook = func(w http.ResponseWriter, _ *http.Request, key string) bool {
				if !missing || key != "set/late" {
					return false
				}
				fail(w, http.StatusNotFound, "NoSuchKey")
				return true
			}
			load := func(refused int64, current string) {
				t.Helper()
				status, err := b.load()
				require.NoError(t, err)
				require.Equal(t, refused, status.Refused)
				require.Equal(t, current, b.current())
			}
			b.few("a")
			if !first {
				load(0, "1")
				revision, missing = "sha256:b", true
			}
			b.fake.put("set/late", []byte("late"))
			load(1, "1")
			b.fake.got()
			before := fetched
			for range 2 {
				load(1, "1")
			}
			require.Equal(t, before, fetched)
			missing = false
			load(0, "2")
			require.Equal(t, map[string]int{"set/late": 1}, b.fake.got(), "nothing else is fetched again")
			load(0, "2")
			require.Equal(t, before+1, fetched)
		})
	}
}

// The next version may still hold an object of an earlier revision in place of a missing one.
func TestMissingBlobInPlaceOfAnEarlierOne(t *testing.T) {
	b := newVersionBed(t)
	revision, missing := "sha256:a", false
	b.change = func(c *Config) {
		c.Source.URL, c.Sync, c.Store = "oci://registry/artifact", true, packedStore{c.Store, func() {}, revision}
	}
	b.fake.hook = func(w http.ResponseWriter, _ *http.Request, key string) bool {
		if missing && key == "set/late" {
			fail(w, http.StatusNotFound, "NoSuchKey")
		}
		return missing && key == "set/late"
	}
	load := func(refused int64, current string) {
		t.Helper()
		status, err := b.load()
		require.NoError(t, err)
		require.Equal(t, refused, status.Refused)
		require.Equal(t, current, b.current())
	}
	b.few("a")
	load(0, "1")
	revision = "sha256:b"
	b.fake.put("set/late", []byte("early"))
	b.fake.put("set/x//y", []byte("b"))
	load(1, "1")
	revision, missing = "sha256:c", true
	b.fake.put("set/late", []byte("late"))
	b.fake.delete("set/x//y")
	for range 2 {
		load(1, "1")
	}
	missing = false
	load(0, "2")
}
