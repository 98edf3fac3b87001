package peer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A peer that breaks off in a file that does not match in the end has the more faults than the
// one that went on with it, so the file comes whole from the latter.
func TestFileOfTwoPeersComesFromTheBetterOne(t *testing.T) {
	for n := range 4 { // whoever's turn it is
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

// A file that was given to a peer which has not been asked yet stays with it.
func TestFileThatNobodySentStaysWithItsPeer(t *testing.T) {
	s := &Store{given: map[string]*gift{}, peers: []*source{{address: "a"}, {address: "b"}}}
	first := s.begin("file").to
	require.Same(t, first, s.begin("file").to)
	require.Same(t, first, s.ask("file", true))
	require.Zero(t, first.faults)
	require.NotSame(t, first, s.ask("file", true), "it did not match")
	require.Equal(t, 1, first.faults)
}
