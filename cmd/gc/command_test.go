package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestFlagsThatAreWrong(t *testing.T) {
	tests := map[string]struct {
		args []string
		err  string
	}{
		"no node":         {nil, "--node-name is empty"},
		"interval":        {[]string{"--node-name=n", "--interval=1ms"}, "--interval is 1ms; give 1s to 10m0s"},
		"long interval":   {[]string{"--node-name=n", "--interval=11m"}, "--interval is 11m0s"},
		"thresholds":      {[]string{"--node-name=n", "--low-threshold-percent=90"}, "--low-threshold-percent 90"},
		"ages":            {[]string{"--node-name=n", "--max-age=1m"}, "--max-age 1m0s"},
		"thin data":       {[]string{"--node-name=n", "--thin-data-watermark-percent=0"}, "--thin-data-watermark-percent 0"},
		"thin metadata":   {[]string{"--node-name=n", "--thin-metadata-watermark-percent=101"}, "--thin-metadata-watermark-percent 101"},
		"orphan share":    {[]string{"--node-name=n", "--orphan-share-percent=0"}, "--orphan-share-percent 0"},
		"wipe rate":       {[]string{"--node-name=n", "--wipe-rate=fast"}, `--wipe-rate is "fast"`},
		"negative rate":   {[]string{"--node-name=n", "--wipe-rate=-1Mi"}, `--wipe-rate is "-1Mi"`},
		"trim rate":       {[]string{"--node-name=n", "--trim-rate=slow"}, `--trim-rate is "slow"`},
		"trim interval":   {[]string{"--node-name=n", "--trim-interval=1s"}, "--trim-interval is 1s"},
		"trim when":       {[]string{"--node-name=n", "--trim-interval=-1h"}, "--trim-interval is -1h0m0s"},
		"nfs export":      {[]string{"--node-name=n", "--nfs-export=srv"}, `--nfs-export "srv": must be an absolute path`},
		"an export twice": {[]string{"--node-name=n", "--nfs-export=/srv,/srv"}, `--nfs-export "/srv": is given twice`},
		"metrics auth":    {[]string{"--node-name=n", "--metrics-auth"}, "--metrics-auth needs --health-address"},
		"log level":       {[]string{"--node-name=n", "--log-level=loud"}, "log level"},
		"a word":          {[]string{"now"}, "unknown command"},
	}
	t.Setenv(nodeVariable, "")
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := command()
			cmd.SetArgs(tt.args)
			require.ErrorContains(t, cmd.Execute(), tt.err)
		})
	}
}

func TestDefaults(t *testing.T) {
	t.Setenv(nodeVariable, "node-1")
	cmd := command()
	name, err := cmd.Flags().GetString("node-name")
	require.NoError(t, err)
	require.Equal(t, "node-1", name)
	o := options{node: "node-1", interval: 1e9, wipeRate: "100Mi", trimRate: "256Mi", policy: eviction.DefaultPolicy()}
	got, err := o.check()
	require.NoError(t, err)
	require.Equal(t, rates{wipe: 100 * volume.MiB, trim: 256 * volume.MiB}, got)
}
