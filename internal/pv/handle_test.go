package pv

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestHandle(t *testing.T) {
	for _, readers := range []bool{false, true} {
		g, n, r, err := ParseHandle("handle", Handle("fast", "pvc-1", readers))
		require.NoError(t, err)
		require.Equal(t, []any{volume.Group("fast"), volume.Name("pvc-1"), readers}, []any{g, n, r})
	}
	for _, bad := range []string{
		"", "/", "pvc-1", "fast/", "/pvc-1", "fast/pvc-1/", "fast/pvc-1/other", "fast/pvc-1/readers/readers", "fast//readers",
		"../pvc-1", "fast/..", "fast/doomed_x", "fast/a b", "fast/" + strings.Repeat("x", 500), "/dev/fast/pvc-1",
	} {
		_, _, _, err := ParseHandle("handle", bad)
		var field *volume.FieldError
		require.ErrorAs(t, err, &field, bad)
		require.Equal(t, "handle", field.Field)
	}
}

func TestClassDoor(t *testing.T) {
	for _, usual := range []Door{Flex, CSI} {
		require.Equal(t, usual, ClassDoor(nil, usual))
		require.Equal(t, Flex, ClassDoor(map[string]string{"door": "flex"}, usual))
		require.Equal(t, CSI, ClassDoor(map[string]string{"door": "csi"}, usual))
	}
	require.Equal(t, Flex, ClassDoor(nil, ""), "the FlexVolume driver is the default")
	_, err := ParseDoor("door", "CSI")
	require.ErrorContains(t, err, "it is one of flex, csi")
}
