package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The program accepts the arguments of every Job that the dataset controller creates.
func TestArgsOfJobs(t *testing.T) {
	data, err := os.ReadFile("../../internal/dataset/testdata/args.jsonl")
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		var call struct {
			Job  string
			Args []string
		}
		require.NoError(t, json.Unmarshal([]byte(line), &call))
		cmd, args, err := command().Find(call.Args)
		require.NoError(t, err, call.Job)
		require.NoError(t, cmd.ParseFlags(args), call.Job)
		require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), call.Job)
	}
}
