package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

func TestBar(t *testing.T) {
	half := protocol.Status{
		State: protocol.StateFetching, FilesDone: 3, FilesTotal: 7, BytesDone: 5 << 20, BytesTotal: 10 << 20, BytesPerSecond: 1 << 20, ETASeconds: 65,
	}
	done := half
	done.BytesDone, done.ETASeconds = half.BytesTotal+1, 0 // a file that is received twice may count twice for a moment
	for name, test := range map[string]struct {
		status protocol.Status
		width  int
		want   string
	}{
		"half":    {half, 120, "[###############...............]  50%  5.0 MiB of 10.0 MiB  3/7 files  1.0 MiB/s  1m5s left"},
		"narrow":  {half, 75, "[######.......]  50%  5.0 MiB of 10.0 MiB  3/7 files  1.0 MiB/s  1m5s left"},
		"no room": {half, 60, "50%  5.0 MiB of 10.0 MiB  3/7 files  1.0 MiB/s  1m5s left"},
		"cut":     {half, 20, "50%  5.0 MiB of 1"},
		"none":    {half, 0, ""},
		"all":     {done, 100, "[##############################] 100%  10.0 MiB of 10.0 MiB  3/7 files  1.0 MiB/s"},
		"nothing": {protocol.Status{State: protocol.StateFetching}, 80, "[..............................]   0%  0 B of 0 B  0/0 files  0 B/s"},
		"listing": {protocol.Status{State: protocol.StateListing, BytesTotal: 1}, 80, "listing"},
		"failed":  {protocol.Status{State: protocol.StateFailed, Message: "no room"}, 80, "no room"},
		"letters": {protocol.Status{State: protocol.StateFailed, Message: "für"}, 4, "f"},
		"long":    {protocol.Status{State: protocol.StateComplete, Message: "complete: 3 files"}, 10, "complete"},
	} {
		t.Run(name, func(t *testing.T) {
			got := bar(test.status, test.width)
			require.Equal(t, test.want, got)
			require.LessOrEqual(t, len(got), max(0, test.width-1), "a full line would wrap")
		})
	}
}
