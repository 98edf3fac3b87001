package volume

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseGroupUUID(t *testing.T) {
	const uuid = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
	got, err := ParseGroupUUID("volumeGroupUUID", uuid)
	require.NoError(t, err)
	require.Equal(t, uuid, got)
	for _, bad := range []string{"", "x", uuid + "a", "XfRyGjcHcyOLJ62YcSmIbZwNzTCB1y3S", "XfRyG/-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"} {
		_, err := ParseGroupUUID("volumeGroupUUID", bad)
		require.Error(t, err, bad)
	}
}

func TestWordsOfTheOptions(t *testing.T) {
	l, err := ParseLayout("layout", "")
	require.NoError(t, err)
	require.Equal(t, Linear, l)
	l, err = ParseLayout("layout", "thin")
	require.NoError(t, err)
	require.Equal(t, Thin, l)
	_, err = ParseLayout("layout", "raid6")
	require.ErrorContains(t, err, "is not a layout")
	k, err := ParseKind("kind", "")
	require.NoError(t, err)
	require.Equal(t, Claim, k)
	_, err = ParseKind("kind", "Claim")
	require.Error(t, err)
	_, err = ParseNamespace("ns", "Upper")
	require.Error(t, err)
	_, err = ParseNamespace("ns", "-a")
	require.Error(t, err)
	_, err = ParseCluster("clusterUID", "a b")
	require.Error(t, err)
	_, err = ParseInodes("inodes", "1099511627777")
	require.ErrorContains(t, err, "is more than")
}

func TestValidate(t *testing.T) {
	whole := Spec{Group: "flexlvm", Name: "pvc-1", Size: GiB, Layout: Linear, Kind: Claim}
	require.NoError(t, whole.Validate())
	for field, spoil := range map[string]func(*Spec){
		OptionGroup:  func(s *Spec) { s.Group = "" },
		OptionVolume: func(s *Spec) { s.Name = "" },
		OptionSize:   func(s *Spec) { s.Size = 0 },
		OptionLayout: func(s *Spec) { s.Layout = "raid6" },
		// Options that belong to another layout than the volume's.
		OptionStripes:   func(s *Spec) { s.Stripes = 2 },
		OptionStripeKiB: func(s *Spec) { s.Layout, s.StripeKiB = Raid1, 64 },
		OptionMirrors:   func(s *Spec) { s.Layout, s.Mirrors = Striped, 1 },
		OptionThinPool:  func(s *Spec) { s.ThinPool = "thinpool" },
		OptionReadOnly:  func(s *Spec) { s.ReadOnly = true }, // on a claim's volume
		OptionEncrypted: func(s *Spec) { s.Encrypted, s.Kind = true, Dataset },
		OptionOwner:     func(s *Spec) { s.Kind, s.OwnerNamespace = Dataset, "team" },
		OptionVersions:  func(s *Spec) { s.Kind, s.Versions = Dataset, true }, // without ReadOnly
	} {
		s := whole
		spoil(&s)
		var err *FieldError
		require.ErrorAs(t, s.Validate(), &err)
		require.Equal(t, field, err.Field)
	}
	whole.Layout = Thin
	require.ErrorContains(t, whole.Validate(), "thinPool: is required with layout thin")
	whole.ThinPool = whole.Name
	require.ErrorContains(t, whole.Validate(), "is the name of the volume itself")
	whole.ThinPool = "thinpool"
	require.NoError(t, whole.Validate())
	whole.ThinPool = Name(strings.Repeat("-", 60))
	require.ErrorContains(t, whole.Validate(), "thinPool")
	whole.Layout, whole.ThinPool = "raid6", ""
	require.ErrorContains(t, whole.Validate(), "is not a layout")
	whole.Layout, whole.Stripes, whole.StripeKiB = Striped, 3, 128
	require.NoError(t, whole.Validate())
	whole.Layout = Linear
	require.ErrorContains(t, whole.Validate(), `stripes "3": belongs to layout striped, and the layout is linear; remove it`)
}

func TestOptions(t *testing.T) {
	least := Spec{Group: "flexlvm", Name: "pvc-1", Size: GiB, Layout: Linear, Kind: Claim, Namespace: "db"}
	require.Equal(t, map[string]string{
		"volumeGroup": "flexlvm", "size": "1073741824", "layout": "linear", "kind": "claim",
	}, least.Options(), "an option that is there must not be empty")

	all := least
	all.GroupUUID, all.Cluster, all.Inodes = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S", "6e2c0b0a", 5000
	require.Equal(t, map[string]string{
		"volumeGroup": "flexlvm", "size": "1073741824", "layout": "linear", "kind": "claim",
		"volumeGroupUUID": "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S", "clusterUID": "6e2c0b0a", "inodes": "5000",
	}, all.Options())

	striped, raid1 := least, least
	striped.Layout, raid1.Layout = Striped, Raid1
	require.Equal(t, map[string]string{
		"volumeGroup": "flexlvm", "size": "1073741824", "layout": "striped", "kind": "claim", "stripes": "2", "stripeSizeKiB": "64",
	}, striped.Options(), "a later default must not change what was made")
	raid1.Mirrors = 2
	require.Equal(t, map[string]string{
		"volumeGroup": "flexlvm", "size": "1073741824", "layout": "raid1", "kind": "claim", "mirrors": "2",
	}, raid1.Options())

	thin := least
	thin.Layout, thin.ThinPool, thin.Ratio = Thin, "thinpool", 1500
	require.Equal(t, map[string]string{
		"volumeGroup": "flexlvm", "size": "1073741824", "layout": "thin", "kind": "claim", "thinPool": "thinpool",
	}, thin.Options(), "the ratio is the provisioner's alone")
	thin.CloneOf = "pvc-1"
	require.Equal(t, "pvc-1", thin.Options()["cloneOf"])
}
