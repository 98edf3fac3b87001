//go:build cluster

package gc_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// testUndeleted follows docs/undelete.md after a claim was deleted by mistake.
func (b *bed) testUndeleted(t *testing.T) {
	s := b.space(t, "shop")
	s.claim(lazy, "data")
	s.pod("main", "data")
	s.running("main")
	name := s.volumeOf("data")
	sum := s.sums("main")
	s.end("main")
	s.deleteClaims("data")
	b.persistentVolumeGone(t, name)

	// Step 1: stop the clock.
	list := b.onNode(t, driver+" volumes list")
	var line string
	for l := range strings.Lines(list) {
		if strings.Contains(l, name) {
			line = l
		}
	}
	require.Regexp(t, `^flexlvm +`+name+` +unreferenced +64MiB +300MiB +shop +claim .* no .* lazy +none +-\n$`, line, list)
	require.Contains(t, b.onNode(t, driver+" volumes retain "+name), "is retained now (it was unreferenced)")
	require.Equal(t, volume.Retained, b.stateOf(t, name))

	// Step 2: check that the PersistentVolume is gone.
	out, err := b.Kubectl(t.Context(), "get", "pv", name)
	require.ErrorContains(t, err, "NotFound", out)

	// Step 3, bring it back: ssh node1 flexlvm volumes undelete … | kubectl apply -f -
	undelete := driver + " volumes undelete " + name + " --claim data --storage-class flexlvm"
	dry := b.onNode(t, undelete+" --dry-run")
	require.Equal(t, volume.Retained, b.stateOf(t, name), "--dry-run changes nothing")
	manifests := b.onNode(t, undelete)
	require.Equal(t, dry, manifests)
	require.Equal(t, volume.Ready, b.stateOf(t, name), "ready before kubectl has heard of it")
	applied := b.apply(t, manifests)
	require.Contains(t, applied, "persistentvolume/"+name+" created")
	require.Contains(t, applied, "persistentvolumeclaim/data created")
	b.kubectl(t, "-n", s.name, "wait", "pvc/data", "--for=jsonpath={.status.phase}=Bound", "--timeout=240s")
	require.Equal(t, name, s.volumeOf("data"))
	s.pod("main", "data")
	s.running("main")
	require.Equal(t, sum, s.sums("main"), "the pod finds its file")
	b.say(t, "the pod has found its file again")

	// A restored volume is retained by default, until a person calls forget.
	s.end("main")
	s.deleteClaims("data")
	s.phase(name, "Released")
	require.Equal(t, volume.Ready, b.stateOf(t, name))
	b.kubectl(t, "delete", "pv", name, "--timeout=240s")
	require.Equal(t, volume.Retained, b.stateOf(t, name))
	require.Contains(t, b.onNode(t, driver+" volumes forget "+name), "is unreferenced now (it was retained)")
	require.Equal(t, volume.Unreferenced, b.stateOf(t, name), "forget removes nothing by itself")
}
