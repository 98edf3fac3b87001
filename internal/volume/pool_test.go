package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParsePool(t *testing.T) {
	for text, want := range map[string]struct {
		group  Group
		thin   bool
		create string
	}{
		"flexlvm":          {"flexlvm", false, "flexlvm vg create --name flexlvm DEVICE"},
		"flexlvm/thinpool": {"flexlvm", true, "flexlvm vg create --name flexlvm --thin --thin-pool thinpool DEVICE"},
		"fast:small":       {"fast", false, "flexlvm directories create --group fast --pool small --size SIZE"},
	} {
		p, err := ParsePool("name", text)
		require.NoError(t, err)
		require.EqualValues(t, text, p)
		require.Equal(t, want.group, p.Group())
		require.Equal(t, want.thin, p.Thin())
		require.Equal(t, want.create, p.CreateCommand())
	}
	for _, bad := range []string{"", "/", "flexlvm/", "/thinpool", "a/b/c", "../x", "-x/y", "x/-y", "flexlvm/pool_tdata", "flexlvm/doomed_x"} {
		_, err := ParsePool("name", bad)
		var field *FieldError
		require.ErrorAs(t, err, &field, bad)
	}
	require.EqualValues(t, "g", PoolOf("g", ""))
	require.EqualValues(t, "g/p", PoolOf("g", "p"))
}

// A pool is recognized by its tags, and never parsed as a volume.
func TestPoolTags(t *testing.T) {
	require.True(t, OwnedPool(PoolTags()))
	require.False(t, OwnedPool([]string{TagOwned}))
	require.False(t, OwnedPool([]string{"flexlvm.kind=pool"}))
	_, err := ParseTags(PoolTags())
	require.Error(t, err)
	_, err = ParseKind("kind", "pool")
	require.Error(t, err)
	whole := Tags{State: Unreferenced, FS: "b5f6d5a0-5d5e-4a53-9f0a-1f0c7d3f7f10", Size: 1, Namespace: "x", Kind: Claim}.Strings()
	_, err = ParseTags(append(whole, PoolTags()[1]))
	require.ErrorContains(t, err, "is one of several")
}
