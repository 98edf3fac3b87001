package ondisk

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestNewUUID(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		s, err := NewUUID()
		require.NoError(t, err)
		u, err := uuid.Parse(s)
		require.NoError(t, err)
		require.Equal(t, s, u.String(), "canonical")
		require.Equal(t, uuid.Version(4), u.Version())
		require.Equal(t, uuid.RFC4122, u.Variant())
		require.False(t, seen[s])
		seen[s] = true
	}
}
