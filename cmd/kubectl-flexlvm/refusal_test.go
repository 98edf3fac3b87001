package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// What cannot be is refused before the cluster is asked: the field, its value, what to give.
func TestRefusals(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: c,
		clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}`), 0o600))
	for _, tt := range []struct {
		says string
		args []string
	}{
		{`--output "xml": give one of table, wide, json, yaml`, []string{"status", "-o", "xml"}},
		{`--output "xml": give one of table, wide, json, yaml`, []string{"volumes", "-o", "xml"}},
		{`--output "xml": give one of table, wide, json, yaml`, []string{"plan", "-o", "xml"}},
		{`--output "xml": give one of table, wide, json, yaml`, []string{"dataset", "-o", "xml"}},
		{`--output "xml": give one of table, wide, json, yaml`, []string{"doctor", "-o", "xml"}},
		{`--output "xml": give one of table, wide, json, yaml`, []string{"job", "ls", "-o", "xml"}},
		{`unknown flag: --clam; see kubectl flexlvm plan --help`, []string{"plan", "--clam", "5Gi"}},
		{`--claim "5XB"`, []string{"plan", "--claim", "5XB"}},
		{`--claim "0": give a size of more than 0 and at most 500 TiB`, []string{"plan", "--claim", "0"}},
		{`--nodes 0: give 1 or more`, []string{"plan", "--claim", "1Gi", "--nodes", "0"}},
		{`--next 0: give 1 or more`, []string{"plan", "--next", "0"}},
		{`--class "fast": asks about a claim; give its size, as in --claim 500Gi`, []string{"plan", "--class", "fast"}},
		{`--nodes "3": asks about a claim; give its size, as in --claim 500Gi`, []string{"plan", "--nodes", "3"}},
		{`--claim "": asks about a claim; give its size, as in --claim 500Gi`, []string{"plan", "--claim="}},
		{"name the claim that was deleted, or its volume with --volume", []string{"undelete"}},
		{"name either the claim that was deleted, or the volume with --volume", []string{"retain"}},
		{"--wait 0s: give more than 0, as in 1m", []string{"forget", "data", "--wait=0s"}},
		{"name the door, csi or flex, and the claims", []string{"door"}},
		{`door "foo": is not known; it is one of flex, csi`, []string{"door", "foo", "data"}},
		{"name the claims, or give --all-of-class", []string{"door", "csi"}},
		{`[]: name one job; kubectl flexlvm job ls lists them`, []string{"job", "logs"}},
		{`["a" "b"]: name one job`, []string{"job", "logs", "a", "b"}},
		{`--name "" cannot be the name of a job`, []string{"job", "submit"}},
		{`context "none" does not exist`, []string{"status", "--context", "none"}},
		{"see whether kubectl version reaches the server, and --kubeconfig and --context name the right one", []string{"status"}},
	} {
		cmd := command()
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(append([]string{"--kubeconfig=" + kubeconfig}, tt.args...))
		require.ErrorContains(t, cmd.Execute(), tt.says, "%v", tt.args)
	}
}
