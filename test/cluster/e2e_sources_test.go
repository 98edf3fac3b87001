//go:build cluster

package cluster_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/hub"
	"github.com/flexlvm/flexlvm/test/oci"
	"github.com/flexlvm/flexlvm/test/vm"
)

// sourcesPort is the first port on which the servers of this file listen.
const sourcesPort = 9300

// shippedDataset returns an example's manifest with a capacity that these nodes have, and with the
// pairs of texts replaced, such as names of servers that do not exist.
func shippedDataset(t *testing.T, name string, pairs ...string) string {
	t.Helper()
	root, err := vm.SourceDir()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "examples/datasets", name))
	require.NoError(t, err)
	manifest := regexp.MustCompile(`capacity: \d+Gi`).ReplaceAllString(string(text), "capacity: 400Mi")
	for i := 0; i < len(pairs); i += 2 {
		require.Contains(t, manifest, pairs[i])
	}
	return strings.NewReplacer(pairs...).Replace(manifest)
}

// content writes these files to a folder and returns their checksums.
func content(t *testing.T, dir string, files map[string]string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	for path, text := range files {
		name := filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
		sums[path] = sumOf(text)
	}
	return sums
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// commitOf returns the commit that a Hub assigns to a repository of these files.
func commitOf(repository string, texts map[string]string) string {
	files := map[string]hub.File{}
	for path, text := range texts {
		files[path] = hub.File{Content: []byte(text)}
	}
	return (&hub.Hub{}).Commit(repository, "main", files)
}

// The examples of sources over HTTP fill volumes on the requested nodes from servers that require
// authentication, and no secret is visible anywhere.
func TestDatasetsOverHTTP(t *testing.T) {
	slots.Parallel(t, 40)
	const token = "hf_theTokenOfATest"
	l := &library{tenant: newTenant(t, "sources")}
	dir := t.TempDir()
	large := strings.Repeat("0123456789abcdef", 40<<16) // 40 MiB
	speech := map[string]string{"train/a.tar": large, "train/b.txt": "b", "test/c.txt": "c"}
	content(t, filepath.Join(dir, "files"), speech)
	var list strings.Builder
	for path, text := range speech {
		fmt.Fprintf(&list, "{\"url\":%q,\"sha256\":%q,\"size\":%d}\n", path, sumOf(text), len(text))
	}
	content(t, filepath.Join(dir, "files"), map[string]string{"list.jsonl": list.String()})
	model := content(t, filepath.Join(dir, "models/example-org/example-7b"), map[string]string{"weights.bin": large, "config.json": "{}", "tokenizer/a.txt": "a"})
	content(t, filepath.Join(dir, "models/example-org/example-7b"), map[string]string{"other.gguf": "excluded"})
	questions := map[string]string{"easy.jsonl": "{}", "hard/1.jsonl": "{\"a\":1}"}
	asked := content(t, filepath.Join(dir, "datasets/example-org/questions"), questions)
	commit := commitOf("datasets/example-org/questions", questions)
	endpoint, stop, err := shared.StartHub(l.ctx, sourcesPort, dir, token)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stop()) })
	registry, err := shared.StartRegistry(l.ctx, sourcesPort+2)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, registry.Stop()) })
	digest, err := registry.Push(l.ctx, shared.Dial, "models/example-7b", "v1",
		oci.Layer{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Content: oci.Gzip(oci.Tar(map[string]string{"models/weights": large, "models/config.json": "{}", "etc/passwd": "x"}))})
	require.NoError(t, err)

	l.kubectl("create", "secret", "generic", "hugging-face", "--from-literal=token="+token)
	require.NoError(t, l.apply(shippedDataset(t, "http.yaml", "https://data.example.org/speech/list.jsonl", endpoint+"/files/list.jsonl")))
	asks := "credentialsSecretName: hugging-face\n        endpointURL: " + endpoint // this Hub requires the token
	require.NoError(t, l.apply(shippedDataset(t, "huggingface.yaml", "credentialsSecretName: hugging-face", asks,
		"questions@0123456789abcdef0123456789abcdef01234567", "questions@"+commit+"\n        "+asks)))
	require.NoError(t, l.apply(shippedDataset(t, "oci.yaml", "oci://registry.example.org/", "oci://"+registry.Host+"/", "credentialsSecretName: registry", "endpointURL: http://"+registry.Host)))

	for name, want := range map[string]struct {
		sums     map[string]string
		revision string
	}{
		"http":        {map[string]string{"train/a.tar": sumOf(large), "train/b.txt": sumOf("b")}, "sha256:" + sumOf(list.String())},
		"huggingface": {model, ""},
		"oci":         {map[string]string{"models/weights": sumOf(large), "models/config.json": sumOf("{}")}, digest},
	} {
		vm := l.until(name, filled)
		require.Equal(t, flexlvmv1.MessageRunning, vm.Status.Message)
		require.Equal(t, []string{"node1", "node2"}, l.bearingOf(vm, vm.Spec.Volumes[0].ID))
		for _, node := range vm.Status.Volumes[0].Nodes {
			require.NotEmpty(t, node.Revision)
			if want.revision != "" {
				require.Equal(t, want.revision, node.Revision)
			}
		}
		l.reader("reader-"+name, vm, "node2")
		require.Equal(t, want.sums, l.read("reader-"+name))
	}
	l.readsAtCommit(commit, asked)
	require.NotContains(t, l.kubectl("get", "vm,jobs,pods,events", "-o", "yaml"), token)
}

// readsAtCommit checks that the second volume of the Hub's example has these files, at that commit.
func (l *library) readsAtCommit(commit string, want map[string]string) {
	l.t.Helper()
	vm := l.get("huggingface")
	vm.Status.Volumes = vm.Status.Volumes[1:]
	require.Equal(l.t, commit, vm.Status.Volumes[0].Nodes[0].Revision)
	l.reader("reader-questions", vm, "")
	require.Equal(l.t, want, l.read("reader-questions"))
}

// The example of an NFS export that is copied: jobs read it from their nodes' own disks, also when the
// server is down, and the export is unchanged.
func TestDatasetOfNFS(t *testing.T) {
	slots.Parallel(t, 40)
	l := &library{tenant: newTenant(t, "shares")}
	server, export, err := shared.StartNFS(l.ctx, "node2")
	require.NoError(t, err)
	sets := export + "/sets"
	onNode(l.ctx, t, "node2", "mkdir -p "+sets+"/images/deep && chmod 755 "+sets+" "+sets+"/images && "+
		"head -c 20000000 /dev/urandom >"+sets+"/images/large && echo small >"+sets+"/images/deep/small && echo other >"+sets+"/other")
	look := "cd " + sets + " && find . | sort | xargs stat -c '%n %u %g %a %Y %s'"
	before := onNode(l.ctx, t, "node2", look)
	sums := map[string]string{}
	for line := range strings.Lines(onNode(l.ctx, t, "node2", "cd "+sets+"/images && find . -type f -exec sha256sum {} +")) {
		sum, path, found := strings.Cut(strings.TrimSpace(line), "  ./")
		require.True(t, found, line)
		sums[path] = sum
	}
	require.NoError(t, l.apply(shippedDataset(t, "pvc.yaml", "nas.example.org", server, "path: /exports/sets", "path: "+sets)))
	vm := l.until("pvc", func(vm flexlvmv1.VolumeManager) string {
		if vm.Status.State != flexlvmv1.StateRunning || len(vm.Status.Volumes) != 2 || vm.Status.Volumes[1].ReadyReplicas != 2 {
			return fmt.Sprintf("its state is %q: %+v", vm.Status.State, vm.Status.Volumes)
		}
		return ""
	})
	require.Equal(t, []string{"node1", "node2"}, l.bearingOf(vm, "local"))
	require.Equal(t, before, onNode(l.ctx, t, "node2", look), "nothing is changed there")
	vm.Status.Volumes = vm.Status.Volumes[1:]
	l.reader("reader", vm, "node1")
	require.Equal(t, sums, l.read("reader"))
	l.kubectl("delete", "pod", "reader")
	l.kubectl("delete", "vm", "pvc", patiently)
	require.Equal(t, before, onNode(l.ctx, t, "node2", look))
}
