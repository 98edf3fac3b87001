package fetch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/s3store"
)

// orObject configures the source as --or-object does.
func (b *bed) orObject() {
	b.change = func(c *Config) {
		c.Sync, c.Source.OrObject = true, true
		from, err := s3store.New(c.Source, s3store.Config{Endpoint: b.fake.URL, Attempts: 3, Stall: patient})
		require.NoError(b.t, err)
		c.Store = from
	}
}

// When the last object below a prefix is deleted, an object with the prefix's name does not replace the
// fetched files: it is often only a folder marker.
func TestObjectAndPrefixOfOneName(t *testing.T) {
	b := newBed(t)
	b.orObject()
	fetch := func() error {
		_, _, err := b.run("s3://bucket/p/")
		return err
	}
	object, below := []byte("object"), []byte("below")
	b.fake.put("p", object)
	require.NoError(t, fetch())
	b.mustHave(map[string][]byte{"p": object})

	b.fake.put("p/a", below)
	require.NoError(t, fetch())
	b.mustHave(map[string][]byte{"a": below})

	b.fake.delete("p/a")
	for range 2 {
		require.ErrorContains(t, fetch(), "no objects are left")
		b.mustHave(map[string][]byte{"a": below})
		// Without the completion file, the state is that of an interrupted run.
		if err := os.Remove(filepath.Join(b.dest, ".flexlvm", "complete")); !os.IsNotExist(err) {
			require.NoError(t, err)
		}
	}

	b.fake.put("p/b", below)
	require.NoError(t, fetch())
	b.mustHave(map[string][]byte{"b": below})
}

// The same for versions, where the next version starts empty.
func TestVersionOfObjectAndPrefixOfOneName(t *testing.T) {
	b := newVersionBed(t)
	b.orObject()
	object, below := []byte("object"), []byte("below")
	b.fake.put("set", object)
	_, err := b.load()
	require.NoError(t, err)
	b.holds("1", map[string][]byte{"set": object})

	b.fake.put("set/a", below)
	_, err = b.load()
	require.NoError(t, err)
	b.holds("2", map[string][]byte{"a": below})

	b.fake.delete("set/a")
	for range 2 {
		_, err = b.load()
		require.ErrorContains(t, err, "no objects are left")
		require.Equal(t, "2", b.current())
		b.holds("2", map[string][]byte{"a": below})
	}

	b.fake.put("set/b", below)
	_, err = b.load()
	require.NoError(t, err)
	require.Equal(t, "3", b.current())
	b.holds("3", map[string][]byte{"b": below})
}

// Folder markers do not count as objects below the prefix, so the object with the prefix's name is used.
// It does not replace fetched files.
func TestObjectBesideAnEmptyFolder(t *testing.T) {
	b := newBed(t)
	b.orObject()
	object, below := []byte("object"), []byte("below")
	for _, key := range []string{"p/", "p/d/", "p/p/"} {
		b.fake.put(key, nil)
	}
	_, _, err := b.run("s3://bucket/p/")
	require.ErrorContains(t, err, "only mark folders", "there is no object of that name")

	b.fake.put("p", object)
	refused, _, err := b.run("s3://bucket/p/")
	require.NoError(t, err)
	require.Empty(t, refused)
	b.mustHave(map[string][]byte{"p": object})

	b.fake.put("p/a", below)
	_, _, err = b.run("s3://bucket/p/")
	require.NoError(t, err)
	b.mustHave(map[string][]byte{"a": below})
	b.fake.delete("p/a")
	_, _, err = b.run("s3://bucket/p/")
	require.ErrorContains(t, err, "no objects are left")
	b.mustHave(map[string][]byte{"a": below})
}
