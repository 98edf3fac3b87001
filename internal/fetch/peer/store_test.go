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
		s := &Store{assignments: map[string]*assignment{}, peers: []*peerState{{address: "a"}, {address: "b"}}, picks: n}
		path := fmt.Sprint(n)
		s.assign(path)
		bad := s.peerFor(path, false)
		s.addFault(bad)
		s.reassign(path, bad)
		good := s.peerFor(path, false)
		require.NotSame(t, bad, good)
		require.Same(t, good, s.peerFor(path, false), "and so do the other spans")
		require.Same(t, good, s.assign(path).to)
	}
}

// A file stays assigned to a peer that was not asked for it yet.
func TestFileThatNobodySentStaysWithItsPeer(t *testing.T) {
	s := &Store{assignments: map[string]*assignment{}, peers: []*peerState{{address: "a"}, {address: "b"}}}
	first := s.assign("file").to
	require.Same(t, first, s.assign("file").to)
	require.Same(t, first, s.peerFor("file", true))
	require.Zero(t, first.faults)
	require.NotSame(t, first, s.peerFor("file", true), "it did not match")
	require.Equal(t, 1, first.faults)
}
