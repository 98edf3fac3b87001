package nodeagent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A state is announced when it begins, when it changes, and periodically while it lasts.
func TestDedupe(t *testing.T) {
	t.Parallel()
	d, at := newDedupe(), time.Unix(0, 0)
	require.True(t, d.note("topic", "a", at), "it begins")
	require.False(t, d.note("topic", "a", at))
	require.True(t, d.note("another", "a", at), "another topic")
	require.True(t, d.note("topic", "b", at), "it changes")
	require.True(t, d.note("topic", "a", at), "it changes back")

	at = at.Add(repeatAfter - 1)
	require.False(t, d.note("topic", "a", at), "it lasts")
	at = at.Add(1)
	require.True(t, d.note("topic", "a", at), "the event is forgotten soon")
	require.False(t, d.note("topic", "a", at.Add(repeatAfter-1)), "counted from the last time")

	require.True(t, d.end("topic"))
	require.False(t, d.end("topic"), "it is over")
	require.True(t, d.note("topic", "a", at), "it begins anew")
}

// An entry is dropped only when its state would be announced again anyway.
func TestDedupeForgets(t *testing.T) {
	t.Parallel()
	d, at := newDedupe(), time.Unix(0, 0)
	d.note("old", "a", at)
	d.note("young", "a", at.Add(1))
	d.sweep(at.Add(2 * repeatAfter))
	require.Len(t, d.by, 2)
	d.sweep(at.Add(2*repeatAfter + 1))
	require.False(t, d.end("old"))
	require.True(t, d.end("young"))
}
