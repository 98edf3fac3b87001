package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A pool is listed while its volumes are created, grown and removed: nothing in it is counted twice.
func TestListingTakes(t *testing.T) {
	has := func(limit, used volume.Bytes) quota.Usage {
		return quota.Usage{Limit: quota.Limit{Size: limit, Inodes: 64}, Used: used, Inodes: 1}
	}
	const one = quota.Project(2)
	none := map[quota.Project]quota.Usage{}
	only := func(u quota.Usage) map[quota.Project]quota.Usage { return map[quota.Project]quota.Usage{one: u} }
	mib := only(has(volume.MiB, 0))
	takes := takesOf(has(volume.MiB, 0))
	for name, c := range map[string]struct {
		before, after map[quota.Project]quota.Usage
		known         bool
		volumes       []inventory.Volume
		want          volume.Bytes
	}{
		"what files without a project take":     {map[quota.Project]quota.Usage{0: has(0, volume.MiB)}, map[quota.Project]quota.Usage{0: has(0, volume.MiB)}, false, nil, 0},
		"a volume":                              {mib, mib, true, []inventory.Volume{{Allocated: takes}}, takes},
		"a volume that was made meanwhile":      {none, mib, true, []inventory.Volume{{Allocated: takes}}, takes},
		"one that was made after the names":     {none, mib, false, nil, 0},
		"one that is being made":                {mib, mib, true, nil, 0},
		"one that was removed":                  {mib, none, false, nil, 0},
		"one that was removed after the names":  {mib, none, true, []inventory.Volume{{Allocated: takes}}, takes},
		"one whose quota is cleared":            {mib, only(quota.Usage{Inodes: 1}), true, []inventory.Volume{{Allocated: takes}}, takes},
		"one that has grown since it was read":  {mib, only(has(2*volume.MiB, 0)), true, []inventory.Volume{{Allocated: takes}}, takes},
		"one whose record makes no sense":       {mib, mib, false, []inventory.Volume{{Problem: "odd"}}, takes},
		"files that are counted to nobody":      {only(has(0, volume.MiB)), only(has(0, volume.MiB)), false, nil, takes},
		"a volume that exceeds its quota":       {mib, only(has(volume.MiB, 3*volume.MiB)), true, []inventory.Volume{{Allocated: takes}}, takes + 2*volume.MiB},
		"a volume that has lost it, with files": {mib, only(has(0, volume.MiB)), true, []inventory.Volume{{Allocated: takes}}, takes},
	} {
		l := listing{volumes: c.volumes, known: map[quota.Project]bool{one: c.known}, before: c.before, after: c.after}
		require.Equal(t, c.want, l.taken(), name)
	}
}
