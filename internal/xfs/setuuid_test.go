package xfs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSetUUIDIsToldWhatXFSAdminTells(t *testing.T) {
	var ran recorder
	require.NoError(t, SetUUID(t.Context(), &ran, "/dev/mapper/flexlvm-a", "0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"))
	require.Equal(t, "xfs_db -x -p xfs_admin -c uuid 0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11 /dev/mapper/flexlvm-a", ran[0].String())
	require.Len(t, ran[0].Args, 6)
	require.True(t, ran[0].Disposable)
}
