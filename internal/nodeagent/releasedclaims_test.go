package nodeagent

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// Each PersistentVolume of a volume has a note, the last of which counts, until the volume is gone.
func TestReleasedClaims(t *testing.T) {
	t.Parallel()
	c := newReleasedClaims()
	said := func(uid, claim string) releasedClaim {
		return releasedClaim{uid: types.UID(uid), origin: flexlvmv1.ReleasedOrigin{Claim: claim}}
	}
	c.note("data", said("1", "one"))
	c.note("data", said("2", "two"))
	require.True(t, c.has("data", said("1", "one")))
	require.True(t, c.has("data", said("2", "two")))
	require.Equal(t, "two", c.origin("data").Claim)
	c.note("data", said("1", "another"))
	require.False(t, c.has("data", said("1", "one")))
	require.Equal(t, "another", c.origin("data").Claim)
	require.Len(t, c.byUUID["data"], 2)
	c.keep(map[string]bool{"settled": true})
	require.Empty(t, c.byUUID)
	require.Nil(t, c.origin("data"))
}
