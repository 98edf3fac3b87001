package nodeagent_test

import (
	"slices"
	"testing"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A copy of a volume group (vgimportclone) has volumes with the same UUIDs. The removal of one does not count for the
// other.
func TestRemovalInACopiedGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("doomed_gone", volume.Doomed, 1)
	r.volume("copied", volume.Ready, 1)
	change := func(f func(*inventory.Volume)) {
		r.engine.with(func() {
			f(&r.engine.volumes[slices.IndexFunc(r.engine.volumes, func(v inventory.Volume) bool { return v.Name == "copied" })])
		})
	}
	change(func(v *inventory.Volume) { v.GroupUUID, v.UUID = "copy-uuid", "uuid-doomed_gone" })
	left := func(want ...string) func() bool {
		return func() bool { return slices.Equal(r.engine.names(), want) }
	}
	r.start()
	r.eventually(left("copied ready", "settled ready"), "the original stays")
	r.rounds(2)
	change(func(v *inventory.Volume) { v.Name, v.State = "doomed_copied", volume.Doomed })
	r.eventually(left("settled ready"), "the copy stays")
}
