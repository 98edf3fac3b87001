package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
)

// kubeconfigOf writes a kubeconfig with a server and a user without credentials.
func kubeconfigOf(t *testing.T, server string) string {
	path := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c,
		clusters: [{name: c, cluster: {server: %q}}], contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}`, server), 0o600))
	return path
}

// Both clients may exceed the default of 5 requests per second.
func TestRequestsPerSecond(t *testing.T) {
	config, err := (&session{rules: &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfigOf(t, "https://127.0.0.1:1")}}).restConfig()
	require.NoError(t, err)
	require.InDelta(t, 50, config.QPS, 0)
	require.Equal(t, 100, config.Burst)
}

// Impossible arguments are refused before a request to the cluster, with the flag, its value and the
// valid values.
func TestRefusals(t *testing.T) {
	kubeconfig := kubeconfigOf(t, "https://127.0.0.1:1")
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
		{`--class "fast": needs the size of a claim; set --claim, for example to 500Gi`, []string{"plan", "--class", "fast"}},
		{`--nodes "3": needs the size of a claim; set --claim, for example to 500Gi`, []string{"plan", "--nodes", "3"}},
		{`--claim "": needs the size of a claim; set --claim, for example to 500Gi`, []string{"plan", "--claim="}},
		{`--next 5: cannot be combined with --claim`, []string{"plan", "--claim", "1Gi", "--next", "5"}},
		{`"500Gi": kubectl flexlvm plan accepts flags, but no arguments; see kubectl flexlvm plan --help`, []string{"plan", "500Gi"}},
		{`"node-1": kubectl flexlvm status accepts flags, but no arguments`, []string{"status", "node-1"}},
		{`"data": kubectl flexlvm volumes accepts flags, but no arguments`, []string{"volumes", "data"}},
		{`"x": kubectl flexlvm job ls accepts flags, but no arguments`, []string{"job", "ls", "x"}},
		{`unknown command "sumbit" for "kubectl flexlvm job"; see kubectl flexlvm job --help`, []string{"job", "sumbit"}},
		{`--port 99999: give 1 to 65535, or 0 for any free port`, []string{"ui", "--port", "99999"}},
		{`["a" "b"]: name the claim that was deleted, or its volume with --volume`, []string{"undelete", "a", "b"}},
		{`--wait -1s: give 0 or more`, []string{"undelete", "data", "--wait=-1s"}},
		{`--door "x": `, []string{"undelete", "data", "--door", "x"}},
		{`--secret "x": `, []string{"undelete", "data", "--secret", "x"}},
		{`--as-claim "My_Data": cannot be the name of an object in Kubernetes`, []string{"undelete", "data", "--as-claim", "My_Data"}},
		{`claim "My_Data": cannot be the name of an object in Kubernetes`, []string{"undelete", "My_Data"}},
		{`--storage-class "Fast": cannot be the name of an object in Kubernetes`, []string{"undelete", "data", "--storage-class", "Fast"}},
		{`--reclaim-policy "keep": give Retain or Delete`, []string{"undelete", "data", "--reclaim-policy", "keep"}},
		{`["data"]: give either the names of claims or --all-of-class`, []string{"door", "csi", "data", "--all-of-class", "flexlvm"}},
		{`check that kubectl version reaches the server`, []string{"job", "ls"}},
		{`check that kubectl version reaches the server`, []string{"job", "logs", "count"}},
		{"name the claim that was deleted, or its volume with --volume", []string{"undelete"}},
		{"name either the claim that was deleted, or the volume with --volume", []string{"retain"}},
		{"--wait 0s: give more than 0, such as 1m", []string{"forget", "data", "--wait=0s"}},
		{"name the driver, csi or flex, and the claims", []string{"door"}},
		{`door "foo": is not known; it is one of flex, csi`, []string{"door", "foo", "data"}},
		{"give either the names of claims or --all-of-class", []string{"door", "csi"}},
		{`[]: name one job; kubectl flexlvm job ls lists them`, []string{"job", "logs"}},
		{`["a" "b"]: name one job`, []string{"job", "logs", "a", "b"}},
		{`[""]: a name is empty (is a variable not set?); see kubectl flexlvm forget --help`, []string{"forget", ""}},
		{`[""]: a name is empty`, []string{"retain", "", "-n", "shop"}},
		{`[""]: a name is empty`, []string{"undelete", ""}},
		{`[""]: a name is empty`, []string{"undelete", "", "--volume", "pvc-1"}},
		{`--volume is empty (is a variable not set?); give a name, or leave the flag out`, []string{"forget", "data", "--volume", ""}},
		{`--volume is empty`, []string{"undelete", "data", "--volume="}},
		{`--node is empty`, []string{"forget", "--volume", "pvc-1", "--node", ""}},
		{`--namespace is empty`, []string{"forget", "data", "-n", ""}},
		{`--as-claim is empty`, []string{"undelete", "data", "--as-claim", ""}},
		{`["csi" ""]: a name is empty`, []string{"door", "csi", ""}},
		{`--all-of-class is empty`, []string{"door", "csi", "data", "--all-of-class", ""}},
		{`--namespace is empty`, []string{"door", "csi", "--all-of-class", "flexlvm", "--namespace="}},
		{`[""]: a name is empty`, []string{"job", "logs", ""}},
		{`[""]: a name is empty`, []string{"job", "collect", ""}},
		{`["books" ""]: a name is empty`, []string{"dataset", "refresh", "books", ""}},
		{`[]: name the VolumeManagers`, []string{"dataset", "refresh"}},
		{`--name "" cannot be the name of a job`, []string{"job", "submit"}},
		{`context "none" does not exist`, []string{"status", "--context", "none"}},
		{"check that kubectl version reaches the server, and that --kubeconfig and --context select the right cluster", []string{"status"}},
	} {
		cmd := command()
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(append([]string{"--kubeconfig=" + kubeconfig}, tt.args...))
		require.ErrorContains(t, cmd.Execute(), tt.says, "%v", tt.args)
	}
}

// A command's help is about that command and shows only a few of kubectl's own flags.
func TestHelpIsShort(t *testing.T) {
	cmd := command()
	for _, name := range hiddenFlags {
		require.NotNil(t, cmd.PersistentFlags().Lookup(name), name)
	}
	var help strings.Builder
	cmd.SetOut(&help)
	cmd.SetArgs([]string{"plan", "--help"})
	require.NoError(t, cmd.Execute())
	require.NotContains(t, help.String(), "tls-server-name")
	require.Contains(t, help.String(), "--kubeconfig")
	require.Less(t, strings.Count(help.String(), "\n"), 40, help.String())
}
