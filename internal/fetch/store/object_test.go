package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestObjectSame(t *testing.T) {
	now := time.Now()
	a := Object{Size: 1, ETag: "x"}
	require.True(t, a.Same(Object{Size: 1, ETag: "x", Modified: now}))
	require.False(t, a.Same(Object{Size: 2, ETag: "x"}))
	require.False(t, a.Same(Object{Size: 1, ETag: "y"}))
	require.False(t, a.Same(Object{Size: 1, ETag: "x", Version: "v"}))
	require.True(t, Object{Modified: now}.Same(Object{Modified: now.UTC()}))
	require.False(t, Object{Modified: now}.Same(Object{Modified: now.Add(time.Second)}))
}
