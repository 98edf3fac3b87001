package fetch

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSpareProcessor(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	var s extraProcessor
	before := runtime.GOMAXPROCS(0)
	first, second := s.add(), s.add()
	require.Equal(t, before+1, runtime.GOMAXPROCS(0))
	first()
	require.Equal(t, before+1, runtime.GOMAXPROCS(0), "another range is being fetched")
	second()
	require.Equal(t, before, runtime.GOMAXPROCS(0))
	t.Setenv("GOMAXPROCS", "2")
	s.add()()
	require.Equal(t, before, runtime.GOMAXPROCS(0), "the user's word")
}
