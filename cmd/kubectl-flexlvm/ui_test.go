package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

const soon = 2 * time.Minute

func node(name string) *flexlvmv1.NodeStorage {
	return &flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// listing reports that a fake API server cannot send the initial objects through a watch.
type listing struct{ client.WithWatch }

func (listing) IsWatchListSemanticsUnSupported() bool { return true }

// The page follows the cluster. It reports what it may not read, until it may.
func TestClusterIsWatched(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, flexlvmv1.AddToScheme(scheme))
	var may atomic.Bool
	ours := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "ours", Labels: map[string]string{labelNode: "a"}}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(node("a"), ours, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}}).
		WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			if _, is := list.(*flexlvmv1.VolumeManagerList); is && !may.Load() {
				return fmt.Errorf("volumemanagers is forbidden")
			}
			return c.List(ctx, list, o...)
		}}).Build()
	w := watchCluster(t.Context(), listing{c})
	await.Until(t, soon, func() string {
		s := w.Snapshot()
		return await.Missing(len(s.Storages) == 1 && len(s.Volumes) == 1 && !s.Reading && len(s.Lacks) == 1, "%+v", s)
	})
	require.Equal(t, "ours", w.Snapshot().Volumes[0].Name)
	require.Regexp(t, "^VolumeManagers cannot be read: .*volumemanagers is forbidden$", w.Snapshot().Lacks[0])

	before := w.Version()
	require.NoError(t, c.Create(t.Context(), node("b")))
	await.Until(t, soon, func() string {
		return await.Missing(len(w.Snapshot().Storages) == 2 && w.Version() > before, "%d nodes, version %d", len(w.Snapshot().Storages), w.Version())
	})
	may.Store(true)
	await.Until(t, soon, func() string {
		s := w.Snapshot()
		return await.Missing(len(s.Lacks) == 0 && !s.Reading, "%v", s.Lacks)
	})
}

// The token is not an argument of the browser, because other users of the machine see arguments.
func TestBrowserIsNotGivenTheTokenAsAnArgument(t *testing.T) {
	dir := t.TempDir()
	said := filepath.Join(dir, "said")
	script := "#!/bin/sh\necho \"$@\" >" + said + ".new\nls -l \"$1\" >>" + said + ".new\ncat \"$1\" >>" + said + ".new\nmv " + said + ".new " + said + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", dir)
	done, err := openBrowser(t.Context(), "http://127.0.0.1:1/TOKEN/")
	require.NoError(t, err)
	var text []byte
	await.Until(t, soon, func() string {
		text, err = os.ReadFile(said)
		return await.Missing(err == nil, "%v", err)
	})
	argument, rest, _ := strings.Cut(string(text), "\n")
	require.NotContains(t, argument, "TOKEN")
	require.Contains(t, rest, "-rw-------")
	require.Contains(t, rest, `content="0; url=http://127.0.0.1:1/TOKEN/"`)
	require.FileExists(t, argument)
	done()
	require.NoFileExists(t, argument)

	t.Setenv("PATH", dir+"/none")
	done, err = openBrowser(t.Context(), "http://127.0.0.1:1/TOKEN/")
	require.ErrorContains(t, err, "xdg-open")
	done()
}

// The command prints a page's address, and ends without an error when its context is cancelled.
func TestUI(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not today", http.StatusForbidden)
	}))
	t.Cleanup(api.Close)
	config := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(config, []byte(`apiVersion: v1
kind: Config
current-context: <shop>
contexts: [{name: <shop>, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "`+api.URL+`"}}]
users: [{name: u, user: {}}]
`), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	reads, writes := io.Pipe()
	cmd := command()
	cmd.SetOut(writes)
	cmd.SetErr(&bytes.Buffer{})
	cmd.SetArgs([]string{"ui", "--no-browser", "--kubeconfig=" + config})
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	url, err := bufio.NewReader(reads).ReadString('\n')
	require.NoError(t, err)
	require.Regexp(t, `^http://127\.0\.0\.1:\d+/[A-Z2-7]{26}/\n$`, url)

	var body string
	await.Until(t, soon, func() string {
		answer, err := http.Get(strings.TrimSpace(url))
		require.NoError(t, err)
		defer answer.Body.Close()
		content, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		body = string(content)
		return await.Missing(strings.Contains(body, "NodeStorages cannot be read"), "%s", body)
	})
	require.Contains(t, body, "<title>&lt;shop&gt; · flexlvm</title>")
	cancel()
	require.NoError(t, <-ended)
}
