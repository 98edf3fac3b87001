package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNFSFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--export: is needed at least once":      {},
		"is not of the form SERVER:/PATH=/DIR":   {"--export=nfs.example.org"},
		"names the same export":                  {"--export=a:/b=/1", "--export=a:/b=/2"},
		"--io-timeout is 1ms":                    {"--export=a:/b=/1", "--io-timeout=1ms"},
		"--workers is 0":                         {"--export=a:/b=/1", "--workers=0"},
		"unknown flag: --node-loss-grace":        {"--node-loss-grace=5m"},
		"find the API server (outside a cluster": {"--export=a:/b=/1", "--address=127.0.0.1:0"},
	} {
		t.Setenv("KUBERNETES_SERVICE_HOST", "")
		cmd := command()
		cmd.SetArgs(append([]string{"nfs"}, args...))
		cmd.SetOut(&bytes.Buffer{})
		require.ErrorContains(t, cmd.ExecuteContext(t.Context()), want)
	}
}
