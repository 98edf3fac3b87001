package volume

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseName(t *testing.T) {
	for name, why := range map[string]string{
		"":                        "is empty",
		"-a":                      "begins with a hyphen",
		".":                       "directory reference",
		"..":                      "directory reference",
		"a/b":                     `holds '/'`,
		"../../etc":               `holds '/'`,
		"a b":                     `holds ' '`,
		"a\x00b":                  `holds '\x00'`,
		"naïve":                   `holds 'ï'`,
		"a@b":                     `holds '@'`,
		"snapshot0":               `begins with "snapshot"`,
		"pvmove":                  `begins with "pvmove"`,
		"data_tmeta":              `holds "_tmeta"`,
		"x_rimage_0":              `holds "_rimage"`,
		"doomed_pvc-1":            `begins with "doomed_"`,
		strings.Repeat("a", 101):  "has 101 characters",
		strings.Repeat("ab", 150): "has 300 characters",
	} {
		_, err := ParseName("volume", name)
		var field *FieldError
		require.ErrorAs(t, err, &field, name)
		require.Equal(t, "volume", field.Field)
		require.Contains(t, err.Error(), why)
		require.Less(t, len(err.Error()), 300, "a hostile name must not fill the log")
	}
	for _, name := range []string{"pvc-7b1e0e3c-1d5d-4b0e-9d0c-2f8b6f3a9c11", "data.0", "a", "A_b+c.d-e", strings.Repeat("a", 100)} {
		n, err := ParseName("volume", name)
		require.NoError(t, err, name)
		require.Equal(t, name, string(n))
	}
}

func TestDoomedNamesCannotBeAskedFor(t *testing.T) {
	n, err := ParseName("volume", "pvc-1")
	require.NoError(t, err)
	require.False(t, n.IsDoomed())
	require.True(t, n.Doomed().IsDoomed())
	require.Equal(t, n, n.Doomed().Undoomed())
	_, err = ParseName("volume", string(n.Doomed()))
	require.Error(t, err)
}

func TestDeviceName(t *testing.T) {
	for _, c := range []struct {
		group  Group
		name   Name
		device string
	}{
		{"flexlvm", "data", "flexlvm-data"},
		{"flexlvm", "pvc-1-2", "flexlvm-pvc--1--2"},
		{"my-group", "a", "my--group-a"},
		{"g-", "a", "g---a"}, // g-- then the separator
	} {
		require.Equal(t, c.device, DeviceName(c.group, c.name))
	}
	for _, device := range []string{"flexlvm-data", "flexlvm-pvc--1--2", "my--group-a"} {
		g, n, ok := SplitDeviceName(device)
		require.True(t, ok, device)
		require.Equal(t, device, DeviceName(g, n))
	}
	for _, device := range []string{"", "nohyphen", "-a", "a-", "a--b", "a-b-c"} {
		_, _, ok := SplitDeviceName(device)
		require.False(t, ok, device)
	}
}

func TestNamesThatAreTooLongTogether(t *testing.T) {
	s := Spec{Group: Group(strings.Repeat("-g", 20)), Name: Name(strings.Repeat("a", 90)), Size: GiB, Layout: Linear, Kind: Claim}
	err := s.Validate()
	var field *FieldError
	require.ErrorAs(t, err, &field)
	require.Equal(t, OptionVolume, field.Field)
	s.Group = "flexlvm"
	require.NoError(t, s.Validate())

	s.Name = Name(strings.Repeat("a", 127-len("flexlvm-doomed_")))
	require.NoError(t, s.Validate())
	s.Layout = Raid1
	require.ErrorContains(t, s.Validate(), "device-mapper would need 136 characters", "LVM has longer names for its copies")
}
