package xfs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
)

func TestSetUUIDIsToldWhatXFSAdminTells(t *testing.T) {
	var ran recorder
	require.NoError(t, SetUUID(t.Context(), commandtest.Func(ran.run), "/dev/mapper/flexlvm-a", "0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"))
	require.Equal(t, "xfs_db -x -p xfs_admin -c uuid 0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11 /dev/mapper/flexlvm-a", strings.Join(ran[0], " "))
	require.Len(t, ran[0], 7)
}
