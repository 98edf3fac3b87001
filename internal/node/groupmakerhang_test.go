package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// A disk that does not answer does not hold up the caller and is not read a second time meanwhile. It delays the
// group like a busy disk, and its late answer does not make it a member: it is read again first.
func TestDiskThatHangs(t *testing.T) {
	h, d := newHost(t, 2), declared("/dev/sd*")
	h.reads = disk.NewReads(100 * time.Millisecond)
	hangs, ended := make(chan struct{}), make(chan struct{})
	reads := 0
	h.fails = func(program, device string) error {
		if program == "check" && device == "/dev/sdc" {
			if reads++; reads == 1 {
				defer close(ended)
				<-hangs
			}
		}
		return nil
	}
	for range 2 {
		out, _ := h.run(0, d)
		require.Equal(t, volumegroup.Waiting, out[0].State, out[0].Message)
		require.Contains(t, out[0].Message, "the disk has not answered since ")
		require.Len(t, out[0].Refused, 1)
	}
	close(hangs)
	<-ended
	require.Equal(t, 1, reads)
	require.Empty(t, h.touched)
	require.Eventually(t, func() bool {
		out, _ := h.run(0, d)
		return out[0].State == volumegroup.Made && len(out[0].Members) == 2
	}, time.Minute, time.Millisecond, "the disk does not join")
	require.GreaterOrEqual(t, reads, 3, "the late answer counts")
}
