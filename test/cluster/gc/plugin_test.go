//go:build cluster

package gc_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/built"
)

// pluginBinary builds kubectl-flexlvm.
func pluginBinary(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "kubectl-flexlvm")
	require.NoError(t, built.Program(t.Context(), binary, "./cmd/kubectl-flexlvm"))
	return binary
}

// plugin returns a function that runs the plugin in a namespace, as the administrator.
func (b *bed) plugin(t *testing.T, namespace string) func(args ...string) (string, error) {
	t.Helper()
	binary := pluginBinary(t)
	return func(args ...string) (string, error) {
		cmd := b.Command(t.Context(), append([]string{binary, "--kubeconfig=" + b.AdminKubeconfig(), "--namespace=" + namespace}, args...)...)
		said, err := cmd.CombinedOutput()
		return string(said), err
	}
}

// patiently makes the plugin wait for the daemon as long as tests do.
const patiently = "--wait=8m"

// testPlugin restores a deleted claim with the plugin only, without a shell on the node.
func (b *bed) testPlugin(t *testing.T) {
	s := b.space(t, "plugin")
	flexlvm := b.plugin(t, s.name)
	ask := func(args ...string) string {
		said, err := flexlvm(args...)
		require.NoError(t, err, said)
		return said
	}
	s.claim(lazy, "data")
	s.pod("main", "data")
	s.running("main")
	name, sum := s.volumeOf("data"), s.sums("main")
	s.end("main")
	s.deleteClaims("data")
	b.persistentVolumeGone(t, name)
	s.reported(flexlvm, name, "unreferenced")

	b.testCompletion(t, s.name)

	// A user who may not create PersistentVolumes cannot.
	b.kubectl(t, "create", "serviceaccount", "reader", "-n", s.name)
	b.kubectl(t, "create", "clusterrole", "plugin-reader", "--verb=get,list", "--resource=nodestorages.flexlvm.io,nodes,namespaces,persistentvolumeclaims,persistentvolumes")
	b.kubectl(t, "create", "clusterrolebinding", "plugin-reader", "--clusterrole=plugin-reader", "--serviceaccount="+s.name+":reader")
	said, err := flexlvm("undelete", "data", "--as=system:serviceaccount:"+s.name+":reader")
	require.Error(t, err)
	require.Contains(t, said, "forbidden")
	require.Equal(t, volume.Unreferenced, b.stateOf(t, name))

	require.Contains(t, ask("undelete", "data", "--dry-run"), "flexlvm.io/undelete: ")
	require.Equal(t, volume.Unreferenced, b.stateOf(t, name), "--dry-run changes nothing")
	require.Regexp(t, "^volume "+name+` is ready again, for claim plugin/data \(released 20.*Z, on node `+node+`\)\n$`, ask("undelete", "data", patiently))
	require.Equal(t, volume.Ready, b.stateOf(t, name))
	s.pod("main", "data")
	s.running("main")
	require.Equal(t, sum, s.sums("main"), "the pod finds its file")
	b.event(t, "default", "PersistentVolume", name, "VolumeUndeleted", name)
	require.Contains(t, ask("undelete", "data", patiently), "is ready", "once more changes nothing")
	s.end("main")
	b.say(t, "the plugin has brought the claim back")

	s.testEvictedMeanwhile(flexlvm)
	s.testRetainAndForget(flexlvm, name)
}

// testRetainAndForget retains and forgets the volume of a deleted claim through the API. A volume with
// a claim is refused.
func (s *space) testRetainAndForget(flexlvm func(...string) (string, error), name string) {
	t := s.t
	said, err := flexlvm("forget", "data")
	require.Error(t, err, "its claim is there")
	require.Contains(t, said, "no node reports a released volume")
	s.deleteClaims("data")
	s.kubectl(t, "delete", "pv", name, "--timeout=240s")
	s.reported(flexlvm, name, "retained")
	for _, step := range []struct {
		verb, says string
		state      volume.State
	}{
		{"retain", "is retained already", volume.Retained},
		{"forget", "is unreferenced now (it was retained)", volume.Unreferenced},
		{"retain", "is retained now (it was unreferenced)", volume.Retained},
	} {
		said, err := flexlvm(step.verb, "data", patiently)
		require.NoError(t, err, said)
		require.Contains(t, said, step.says)
		require.Equal(t, step.state, s.stateOf(t, name))
	}
	said, err = flexlvm("undelete", "data", patiently)
	require.NoError(t, err, said)
	require.Equal(t, volume.Ready, s.stateOf(t, name))
	require.Empty(t, s.kubectl(t, "get", "nodestorage", node, "-o", "jsonpath={.spec.requests}"), "requests are taken out again")
	s.say(t, "retained, forgotten and retained through the API")
}

// testCompletion calls kubectl as a shell does: kubectl finds the plugin, and the link for its
// completions, in PATH.
func (b *bed) testCompletion(t *testing.T, namespace string) {
	binary := pluginBinary(t)
	require.NoError(t, os.Symlink(binary, filepath.Join(filepath.Dir(binary), "kubectl_complete-flexlvm")))
	for want, words := range map[string][]string{
		"status":   {"st"},
		"undelete": {"unde"},
		"yaml":     {"volumes", "-o", "y"},
		"submit":   {"job", ""},
		"data\n:4": {"undelete", "--namespace", namespace, ""}, // a deleted claim
	} {
		kubectl := filepath.Join(filepath.Dir(b.AdminKubeconfig()), "kubectl")
		cmd := b.Command(t.Context(), append([]string{kubectl, "__complete", "flexlvm"}, words...)...)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"), "KUBECONFIG="+b.AdminKubeconfig())
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Contains(t, string(out), want, words)
	}
}

// testDoctor checks that the daemon runs the checks in the host's namespaces, as a person on the node
// does.
func (b *bed) testDoctor(t *testing.T, flexlvm func(...string) (string, error)) {
	var all []overview.Examination
	await.Until(t, longest, func() string {
		said, err := flexlvm("doctor", "-o", "json")
		end := strings.LastIndex(said, "]")
		require.GreaterOrEqual(t, end, 0, "%s %v", said, err)
		require.NoError(t, json.Unmarshal([]byte(said[:end+1]), &all), said)
		return await.Missing(len(all) == 1 && all[0].Made > 20, "the groups are not examined: %s", said)
	})
	require.Equal(t, node, all[0].Node)
	// Another test's volume with invalid tags may exist already.
	const riddle = "pvc-riddle"
	for _, f := range all[0].Found {
		require.True(t, f.Level != overview.LevelFail || strings.Contains(f.Check, riddle), "%v", f)
	}
	said, err := flexlvm("doctor")
	require.True(t, err == nil || strings.Contains(said, riddle), said)
	require.Contains(t, said, "1 node: ")
}

// reported waits until the node reports a volume in a state.
func (s *space) reported(flexlvm func(...string) (string, error), name, state string) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		said, err := flexlvm("volumes", "-o", "wide")
		if err != nil {
			return said
		}
		for line := range strings.Lines(said) {
			if strings.Contains(line, name) && strings.Contains(line, " "+state+" ") {
				return ""
			}
		}
		return name + " is not reported as " + state + ":\n" + said
	})
}

// testEvictedMeanwhile: the volume is evicted while its claim is created, and no other volume replaces
// it.
func (s *space) testEvictedMeanwhile(flexlvm func(...string) (string, error)) {
	t := s.t
	s.claim(lazy, "late")
	s.pod("first", "late")
	s.running("first")
	name := s.volumeOf("late")
	s.end("first")
	s.deleteClaims("late")
	s.persistentVolumeGone(t, name)
	s.reported(flexlvm, name, "unreferenced")
	manifests, err := flexlvm("undelete", "late", "--dry-run")
	require.NoError(t, err, manifests)
	s.onNode(t, "lvremove -qq -y "+wide+"/"+name+"; rm -f /var/lib/flexlvm/volumes/"+wide+"/"+name)
	s.apply(t, manifests)
	said, err := flexlvm("undelete", "late", patiently)
	require.Error(t, err)
	require.Contains(t, said, "was evicted before it could be brought back: its data is lost, and no empty volume replaces it")

	s.pod("second", "late")
	await.Until(t, longest, func() string {
		events, err := s.client.CoreV1().Events(s.name).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=second"})
		require.NoError(t, err)
		for _, e := range events.Items {
			if strings.Contains(e.Message, "an empty volume will not take its place") {
				return ""
			}
		}
		return "kubelet has not said so"
	})
	require.Empty(t, s.stateOf(t, name), "an empty volume took its place")
	require.NoError(t, s.client.CoreV1().Pods(s.name).Delete(t.Context(), "second", metav1.DeleteOptions{}))
	s.say(t, "what was evicted meanwhile was not made anew")
}
