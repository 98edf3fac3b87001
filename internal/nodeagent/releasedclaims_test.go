package nodeagent

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Each PersistentVolume of a volume has a note until the volume is gone. The last note counts.
func TestReleasedClaims(t *testing.T) {
	t.Parallel()
	c := newReleasedClaims()
	said := func(uid, claim string) releasedClaim {
		return releasedClaim{uid: types.UID(uid), origin: flexlvmv1.ReleasedOrigin{Claim: claim}}
	}
	c.note("data", "g", said("1", "one"))
	c.note("data", "g", said("2", "two"))
	require.True(t, c.has("data", said("1", "one")))
	require.True(t, c.has("data", said("2", "two")))
	require.Equal(t, "two", c.origin("data").Claim)
	c.note("data", "g", said("1", "another"))
	require.False(t, c.has("data", said("1", "one")))
	require.Equal(t, "another", c.origin("data").Claim)
	require.Len(t, c.byUUID["data"].said, 2)
	c.keepOnly(func(uuid string, pool volume.PoolName) bool { return uuid != "data" || pool == "g" })
	require.Equal(t, "another", c.origin("data").Claim, "its pool is not seen now")
	c.keepOnly(func(uuid string, _ volume.PoolName) bool { return uuid == "settled" })
	require.Empty(t, c.byUUID)
	require.Nil(t, c.origin("data"))
}

// If two pools have a volume of the same name, the one in the PersistentVolume's pool is meant, as in the engine.
func TestInventoriedIsWhereTheEngineLooks(t *testing.T) {
	in := func(pool volume.Name) volume.Shape {
		return volume.Shape{Layout: volume.Directory, DirectoryPool: pool}
	}
	all := inventory.Inventory{Volumes: []inventory.Volume{{Group: "g", Name: "data", UUID: "moved", Shape: in("moved")}, {Group: "g", Name: "data", UUID: "small", Shape: in("small")}}}
	require.Equal(t, "small", inventoried(all, persistentvolume.Volume{Group: "g", Volume: "data", Shape: in("small")}).UUID)
	require.Nil(t, inventoried(all, persistentvolume.Volume{Group: "g", Volume: "data", Shape: in("another")}))
}
