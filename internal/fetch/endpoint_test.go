package fetch

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// For the dataset controller, a replica from the same server is the requested one, however the server's
// URL is written. So a run that does not contact the source must find it complete.
func TestEndpointThatIsWrittenOtherwise(t *testing.T) {
	b := newBed(t)
	want := b.dataset()
	endpoint := strings.TrimPrefix(b.fake.URL, "http://")
	b.change = func(c *Config) { c.Endpoint = endpoint }
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	b.fake.hook = func(http.ResponseWriter, *http.Request, string) bool {
		t.Error("it asks for nothing")
		return false
	}
	for _, endpoint = range []string{b.fake.URL, b.fake.URL + "/", strings.ToUpper(b.fake.URL)} {
		_, _, err = b.run("s3://bucket/set/")
		require.NoError(t, err, endpoint)
	}
	b.mustHave(want)
	b.fake.hook = nil
	endpoint = "https://another"
	_, progress, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	require.NotContains(t, progress.Status(time.Now()).Message, "complete already", "another server has other data")
}

// packedStore stands in for an artifact whose layers are to be unpacked.
type packedStore struct {
	store.Store
	archives func()
	revision string // empty: the default
}

func (p packedStore) Revision() string            { return cmp.Or(p.revision, "sha256:a") }
func (packedStore) Resolve(context.Context) error { return nil }
func (p packedStore) HasAny(ctx context.Context, wanted func(store.Object) bool) (has bool) {
	err := p.List(ctx, func(o store.Object) error {
		if wanted(o) {
			_, _, err := p.Stat(ctx, o.Key, "")
			has = has || err == nil || store.Classify(err) != store.Gone
		}
		return nil
	})
	return has || err != nil
}
func (p packedStore) Archives(*os.Root) (store.Store, error) {
	p.archives()
	return nil, nil
}
func (packedStore) Unpack(context.Context, *os.Root) error { return nil }

// An artifact with the same digest is the same, whichever registry it comes from.
func TestArtifactFromAnotherRegistry(t *testing.T) {
	for _, versions := range []bool{false, true} {
		b := newVersionBed(t)
		want := b.dataset()
		fetched, endpoint := 0, ""
		b.change = func(c *Config) {
			c.Source.URL = "oci://registry/artifact"
			c.Endpoint, c.Sync, c.Store = endpoint, true, packedStore{Store: c.Store, archives: func() { fetched++ }}
		}
		for _, endpoint = range []string{"https://one", "https://two", ""} {
			var err error
			if versions {
				_, err = b.load()
			} else {
				_, err = Run(t.Context(), b.config("s3://bucket/set/"), NewProgress(ReadyAfter{}))
			}
			require.NoError(t, err)
			require.Equal(t, 1, fetched, "the layers come once")
		}
		if versions {
			require.Equal(t, "1", b.current())
			b.holds("1", want)
		}
	}
}
