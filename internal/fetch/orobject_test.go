package fetch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/s3store"
)

// An object beside a prefix of its name, which is often but the mark of a folder, takes the
// place of nothing that was fetched from below the prefix.
func TestObjectAndPrefixOfOneName(t *testing.T) {
	b := newBed(t)
	b.change = func(c *Config) {
		c.Sync, c.Source.OrObject = true, true
		from, err := s3store.New(c.Source, s3store.Config{Endpoint: b.fake.URL, Attempts: 3, Stall: 5 * time.Second})
		require.NoError(t, err)
		c.Store = from
	}
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
		require.ErrorContains(t, fetch(), "nothing is there any more")
		b.mustHave(map[string][]byte{"a": below})
		// As after a run that was interrupted.
		if err := os.Remove(filepath.Join(b.dest, ".flexlvm", "complete")); !os.IsNotExist(err) {
			require.NoError(t, err)
		}
	}

	b.fake.put("p/b", below)
	require.NoError(t, fetch())
	b.mustHave(map[string][]byte{"b": below})
}
