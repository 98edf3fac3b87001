package peer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Two peers sent parts of a file that did not match. The one that also broke off has more faults, so the
// other one is asked for the whole file.
func TestFileOfTwoPeersComesFromTheBetterOne(t *testing.T) {
	for n := range 4 { // whichever peer's turn it is
		s := &Store{given: map[string]*gift{}, peers: []*source{{address: "a"}, {address: "b"}}, rounds: n}
		path := fmt.Sprint(n)
		s.begin(path)
		bad := s.ask(path, false)
		s.blame(bad)
		s.forget(path, bad)
		good := s.ask(path, false)
		require.NotSame(t, bad, good)
		require.Same(t, good, s.ask(path, false), "and so do the other spans")
		require.Same(t, good, s.begin(path).to)
	}
}

// A file stays assigned to a peer that was not asked for it yet.
func TestFileThatNobodySentStaysWithItsPeer(t *testing.T) {
	s := &Store{given: map[string]*gift{}, peers: []*source{{address: "a"}, {address: "b"}}}
	first := s.begin("file").to
	require.Same(t, first, s.begin("file").to)
	require.Same(t, first, s.ask("file", true))
	require.Zero(t, first.faults)
	require.NotSame(t, first, s.ask("file", true), "it did not match")
	require.Equal(t, 1, first.faults)
}
