package ledger_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A growth that was carried out, but taken back, needs no more room when it is granted again, because the node has
// charged what the volume takes.
func TestGrowthThatIsThereAlready(t *testing.T) {
	const gib = volume.GiB
	for name, w := range map[string]ledger.Want{"linear": ledgertest.Want("a", gib), "mirrored": mirroredWant("a", gib)} {
		t.Run(name, func(t *testing.T) {
			takes := w.Spec.Shape().Takes(device(10), volume.DefaultExtent)
			object := bound(w, 1, func(o *corev1.PersistentVolume) {
				o.Annotations[pv.AnnotationCharged] = strconv.FormatInt(int64(takes), 10)
			})
			report := ledgertest.Report("node-1", 100*gib)
			amounts(100*gib, 0, 0, takes)(&report.Status.Pools[0])
			l := ledgertest.New(t, report)
			l.Written(object)
			require.Equal(t, ledger.Granted, l.Grow(object, 10*gib).Outcome)
			require.Equal(t, ledger.Waiting, l.Grow(object, 20*gib).Outcome, "that is not there")
		})
	}
}

// The whole room of a growth that is taken back is kept, even if that is less than an LVM extent.
func TestAllOfASmallGrowthIsKept(t *testing.T) {
	small := ledgertest.Want("a", volume.MiB)
	small.Spec.Layout, small.Spec.DirectoryPool = volume.Directory, "small"
	report := ledgertest.ThinReport("node-1", volume.GiB, func(p *flexlvmv1.Pool) {
		p.Name, p.Layout, p.ExtentSize = "flexlvm:small", string(volume.Directory), ledgertest.Quantity(volume.Block)
	})
	l := ledgertest.New(t, report)
	room := func() volume.Bytes {
		offer, has := l.Offer("node-1", small.Spec)
		require.True(t, has)
		return offer.Room
	}
	l.Written(bound(small, 1))
	before := room()
	grown := bound(small, 2, grownTo(3*volume.MiB))
	l.Written(grown)
	with := room()
	require.Less(t, with, before)
	l.Keep(grown)
	l.Written(bound(small, 3))
	require.Equal(t, with, room(), "kept")
	l.Now = l.Now.Add(5*time.Minute + time.Second)
	require.Equal(t, before, room())
}
