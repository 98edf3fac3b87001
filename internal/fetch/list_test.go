package fetch

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFoldersOf(t *testing.T) {
	objects := []Object{{Key: "a/x/1"}, {Key: "a/x/2"}, {Key: "a/y/1"}, {Key: "a/z"}}
	require.Equal(t, 1, foldersOf("", objects))
	require.Equal(t, 2, foldersOf("a/", objects))
	// A server may answer with keys that nobody asked for, also with shorter ones.
	require.Zero(t, foldersOf("a/long/prefix/", []Object{{Key: "a"}, {Key: ""}}))
}
