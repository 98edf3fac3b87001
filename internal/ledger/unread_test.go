package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

type change = func(*corev1.PersistentVolume)

func option(key, value string) change {
	return func(v *corev1.PersistentVolume) { v.Spec.FlexVolume.Options[key] = value }
}

func noted(charge string) change {
	return func(v *corev1.PersistentVolume) { v.Annotations[pv.AnnotationCharged] = charge }
}

// later returns a PersistentVolume of a later release.
func later(name string, size volume.Bytes, changes ...change) *corev1.PersistentVolume {
	return ledgertest.PersistentVolume("node-1", ledgertest.Want(name, size), append(changes, option("colour", "blue"))...)
}

// records are the two ways in which the ledger learns of a PersistentVolume.
var records = map[string]func(*ledger.Ledger, *corev1.PersistentVolume){
	"written": (*ledger.Ledger).Written, "inherited": (*ledger.Ledger).Inherited,
}

// A newer node daemon counts the room of a PersistentVolume that only it can parse as that of a claim, and relies on
// the provisioner to charge it.
func TestWhatALaterReleaseHasWrittenIsCharged(t *testing.T) {
	two := volume.XFSDeviceSize(2*volume.GiB, 0)
	for name, c := range map[string]struct {
		change change
		taken  volume.Bytes
	}{
		"as it is":                     {func(*corev1.PersistentVolume) {}, two},
		"noted as more":                {noted("4294967296"), 4 * volume.GiB},
		"noted as nonsense":            {noted("much"), two},
		"in another group":             {option(volume.OptionGroup, "other"), 0},
		"in a group replaced":          {option(volume.OptionGroupUUID, "AAAAAA-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"), 0},
		"in a group of unknown UUID":   {option(volume.OptionGroupUUID, "?"), two},
		"of a size that is nonsense":   {option(volume.OptionSize, "much"), two},
		"for the readers of a dataset": {option(volume.OptionReadOnly, "true"), 0},
	} {
		for how, record := range records {
			t.Run(name+", "+how, func(t *testing.T) {
				b := ledgertest.New(t, ledgertest.Report("node-1", 10*volume.GiB))
				record(b.Ledger, later("a", 2*volume.GiB, c.change))
				require.Equal(t, (10*volume.GiB - c.taken).String(), b.Room("node-1").String())
				if c.taken > 0 {
					require.ErrorContains(t, b.Take("node-1", ledgertest.Want("b", 9*volume.GiB)), "has no room")
				}
			})
		}
	}
}

// A PersistentVolume that can no longer be parsed keeps its charge.
func TestWhatCannotBeParsedAnyMoreKeepsItsCharge(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", 10*volume.GiB))
	b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB), noted("4294967296")))
	for _, c := range []change{noted("much"), option(volume.OptionLayout, "spiral")} {
		b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB), c))
		require.Equal(t, 6*volume.GiB, b.Room("node-1"))
	}
}

// If not even the pool of a PersistentVolume can be read, nothing more is promised on its node, and the error says
// why.
func TestWhosePoolCannotBeRead(t *testing.T) {
	for how, record := range records {
		for name, c := range map[string]change{
			"layout": option(volume.OptionLayout, "spiral"), "group": option(volume.OptionGroup, "?"), "thin": option(volume.OptionLayout, "thin"),
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				b := ledgertest.New(t, ledgertest.Report("node-1", 10*volume.GiB), ledgertest.Report("node-2", 10*volume.GiB))
				record(b.Ledger, ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB), c))
				require.Zero(t, b.Room("node-1"))
				require.ErrorContains(t, b.Take("node-1", ledgertest.Want("b", volume.GiB)), `not even the pool of PersistentVolume "a" can be read: upgrade the provisioner`)
				require.NoError(t, b.Take("node-2", ledgertest.Want("b", volume.GiB)))
				b.Gone("a")
				require.Zero(t, b.Room("node-1"))
				b.Left(ledgertest.Report("node-1", 10*volume.GiB))
				require.Equal(t, 10*volume.GiB, b.Room("node-1"))
			})
		}
	}
}
