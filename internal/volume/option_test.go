package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Options and ParseOptions preserve every option of a Spec.
func TestOptionsAreReadBack(t *testing.T) {
	whole := Spec{
		Group: "flexlvm", GroupUUID: "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S", Size: GiB, Layout: Linear,
		Kind: Dataset, ReadOnly: true, Versions: true, OwnerNamespace: "team", Inodes: 5000, Cluster: "6e2c0b0a",
	}
	with := func(change func(*Spec)) Spec {
		s := whole
		change(&s)
		return s
	}
	seen := map[string]bool{OptionVolume: true} // the name of the PersistentVolume
	for _, want := range []Spec{
		whole,
		with(func(s *Spec) { s.Layout, s.Stripes, s.StripeKiB = Striped, 3, 128 }),
		with(func(s *Spec) { s.Layout, s.Mirrors = Raid1, 2 }),
		with(func(s *Spec) { s.Layout, s.ThinPool, s.CloneOf = Thin, "thinpool", "pvc-0" }),
		with(func(s *Spec) {
			s.Kind, s.ReadOnly, s.Versions, s.OwnerNamespace, s.Layout, s.DirectoryPool = Claim, false, false, "", Directory, "small"
		}),
		with(func(s *Spec) {
			s.Kind, s.ReadOnly, s.Versions, s.OwnerNamespace, s.Encrypted = Claim, false, false, "", true
		}),
		with(func(s *Spec) {
			s.Kind, s.ReadOnly, s.Versions, s.OwnerNamespace, s.FSType = Claim, false, false, "", Ext4
		}),
		with(func(s *Spec) {
			s.Kind, s.ReadOnly, s.Versions, s.OwnerNamespace, s.Inodes, s.FSType = Claim, false, false, "", 0, Raw
		}),
		with(func(s *Spec) {
			s.Kind, s.ReadOnly, s.Versions, s.OwnerNamespace, s.CloneOf, s.Reserve = Snapshot, false, false, "", "pvc-0", 30
		}),
		with(func(s *Spec) { s.FS = "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01" }),
	} {
		written := want.Options()
		got, err := ParseOptions(written)
		require.NoError(t, err)
		require.Equal(t, want, got)
		for name := range written {
			seen[name] = true
		}
	}
	for _, o := range Options() {
		require.True(t, seen[o.Name], "no Spec of this test has %s", o.Name)
	}
}

func TestParseOptions(t *testing.T) {
	got, err := ParseOptions(map[string]string{"volumeGroup": "flexlvm", "volume": "imagenet"})
	require.NoError(t, err)
	require.Equal(t, Spec{Group: "flexlvm", Name: "imagenet", Layout: Linear, Kind: Claim}, got)
	for want, given := range map[string]map[string]string{
		`option "sise": is not known to this release; the options are volumeGroup, `: {"sise": "1"},
		`size "1G": is not`:                          {"size": "1G"},
		`encrypted "yes": is neither true nor false`: {"encrypted": "yes"},
		`volumeMode "block": is not the mode of a volume; it is Filesystem or Block`:        {"volumeMode": "block"},
		`fsType "ext4": does not belong to volumeMode Block`:                                {"volumeMode": "Block", "fsType": "ext4"},
		`fsType "block": is not a file system that flexlvm makes`:                           {"fsType": "block"},
		`filesystemUUID "6E2C": is not the UUID of a file system`:                           {"filesystemUUID": "6E2C"},
		`mirrors "1": belongs to layout raid1, and the layout is linear; remove it`:         {"mirrors": "1"},
		`thinPool "thinpool": belongs to layout thin, and the layout is striped; remove it`: {"layout": "striped", "thinPool": "thinpool"},
	} {
		_, err := ParseOptions(given)
		require.ErrorContains(t, err, want)
		var field *FieldError
		require.ErrorAs(t, err, &field)
	}
}

func TestReadOptions(t *testing.T) {
	s, unread := ReadOptions(map[string]string{OptionGroup: "flexlvm", OptionSize: "much", OptionLayout: "spiral", "colour": "blue", OptionKind: "dataset"})
	require.Equal(t, Spec{Group: "flexlvm", Layout: Linear, Kind: Dataset}, s)
	require.ElementsMatch(t, []string{OptionSize, OptionLayout}, unread)
}
