package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMountOptions(t *testing.T) {
	got, err := ParseMountOptions("mountOptions", []string{"rw", "noatime", "nosuid", "noatime"})
	require.NoError(t, err)
	require.Equal(t, []MountOption{NoAtime, NoSUID}, got)
	got, err = ParseMountOptions("mountOptions", nil)
	require.NoError(t, err)
	require.Empty(t, got)

	for _, o := range mountOptions {
		_, err := ParseMountOptions("mountOptions", []string{string(o)})
		require.NoError(t, err, o)
	}
	tests := map[string][]string{
		// Options of the file system are refused, because several mounts share it. So are options that
		// the driver or the pod decides, and contradictions.
		"is not a mount option that a volume may have; they are noatime, relatime,": {"discard"},
		`mountOptions "noquota"`:             {"noatime", "noquota"},
		`mountOptions "ro"`:                  {"rw", "ro"},
		`mountOptions "dev"`:                 {"dev"},
		`mountOptions "suid"`:                {"suid"},
		`mountOptions "noatime,suid"`:        {"noatime,suid"},
		`mountOptions: is not`:               {""},
		`"strictatime": contradicts noatime`: {"noatime", "strictatime"},
	}
	for want, given := range tests {
		_, err := ParseMountOptions("mountOptions", given)
		var field *FieldError
		require.ErrorAs(t, err, &field, given)
		require.ErrorContains(t, err, want)
	}
}
