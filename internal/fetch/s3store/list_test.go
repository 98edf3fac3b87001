package s3store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

func TestFoldersOf(t *testing.T) {
	objects := []store.Object{{Key: "a/x/1"}, {Key: "a/x/2"}, {Key: "a/y/1"}, {Key: "a/z"}}
	require.Equal(t, 1, foldersOf("", objects))
	require.Equal(t, 2, foldersOf("a/", objects))
	// A server may answer with keys that nobody asked for, also with shorter ones.
	require.Zero(t, foldersOf("a/long/prefix/", []store.Object{{Key: "a"}, {Key: ""}}))
}
