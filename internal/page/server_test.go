package page

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
)

func serverOf(s Snapshot) (*Server, *fakeSource) {
	source := sourceOf(s)
	return New(Config{Source: source, Title: "test", Now: func() time.Time { return now }}), source
}

// get sends a request as a browser does.
func (s *Server) get(path string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:4711"+path, nil)
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func (s *Server) path(rest string) string { return "/" + s.token + "/" + rest }

func TestTokenIsRequired(t *testing.T) {
	s, _ := serverOf(many(3))
	require.GreaterOrEqual(t, len(s.token), 26, "130 bits")
	require.Equal(t, http.StatusOK, s.get(s.path("")).Code)
	for _, path := range []string{"/", "/page.css", "/events", "//", "/" + s.token[1:] + "/", "/" + s.token + "x/", "/" + strings.ToLower(s.token) + "/", "/?token=" + s.token} {
		w := s.get(path)
		require.Equal(t, http.StatusForbidden, w.Code, path)
		require.NotContains(t, w.Body.String(), "node-", path)
		require.NotContains(t, w.Body.String(), s.token, path)
	}
	other, _ := serverOf(Snapshot{})
	require.NotEqual(t, s.token, other.token)
	require.Equal(t, http.StatusNotFound, s.get(s.path("page.html")).Code)
	require.Equal(t, http.StatusNotFound, s.get(s.path("../server.go")).Code)
}

// A request whose Host is a foreign name, as in DNS rebinding, is refused even with the right path.
func TestForeignHostsAreRefused(t *testing.T) {
	s, _ := serverOf(many(3))
	for host, ok := range map[string]bool{
		"127.0.0.1:4711": true, "localhost:4711": true, "127.0.0.1": true, "localhost:9": true,
		"evil.example:4711": false, "127.0.0.1.evil.example:4711": false, "localhost.evil.example": false, "10.0.0.1:4711": false, "": false, "[::1]:4711": false,
	} {
		w := s.get(s.path(""), func(r *http.Request) { r.Host = host })
		require.Equal(t, ok, w.Code == http.StatusOK, host)
		require.Equal(t, ok, strings.Contains(w.Body.String(), "node-0000"), host)
	}
}

func TestNothingCanBeChanged(t *testing.T) {
	s, _ := serverOf(many(3))
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions} {
		w := s.get(s.path(""), func(r *http.Request) { r.Method = method })
		require.Equal(t, http.StatusMethodNotAllowed, w.Code, method)
		require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
	}
	require.Equal(t, http.StatusOK, s.get(s.path("events"), func(r *http.Request) { r.Method = http.MethodHead }).Code)
}

// Every response, including a refusal, carries headers that forbid what this page does not need.
func TestPolicy(t *testing.T) {
	s, _ := serverOf(many(30))
	for path, kind := range map[string]string{s.path(""): "text/html", s.path("page.css"): "text/css", s.path("page.js"): "text/javascript", s.path("icon.svg"): "image/svg+xml", "/": "text/plain"} {
		w := s.get(path)
		h := w.Header()
		require.Contains(t, h.Get("Content-Type"), kind)
		require.Contains(t, h.Get("Content-Security-Policy"), "default-src 'none'")
		require.NotContains(t, h.Get("Content-Security-Policy"), "unsafe")
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"))
		require.Equal(t, "no-referrer", h.Get("Referrer-Policy"))
		require.Equal(t, "no-store", h.Get("Cache-Control"))
		require.Empty(t, h.Get("Access-Control-Allow-Origin"))
		require.Empty(t, h.Get("Set-Cookie"))
		if kind == "text/html" {
			body := w.Body.String()
			require.NotContains(t, body, "://", "nothing is from elsewhere")
			require.NotRegexp(t, `<script(>| [^>]*>[^<])`, body, "no script is written into the page")
			require.NotRegexp(t, `<[^>]+ (style|on[a-z]+)=`, body)
		}
	}
}

// Values that other users may choose are shown as they are and never become markup.
func TestHostileNamesAreEscaped(t *testing.T) {
	const evil = `"'><script>alert(1)</script><img src=x onerror=alert(2)>` + "\r\ndata: {{.}}javascript:alert(3)"
	bad := storage(evil, missing, func(s *flexlvmv1.NodeStorageStatus) {
		s.Version, s.Pools[0].Name, s.Pools[0].Closed = evil, evil, evil
		s.Released[0].Name, s.Released[0].Namespace, s.Released[0].Pool = evil, evil, evil
		s.Released[1].Kept = evil
		s.Evictions = []flexlvmv1.Eviction{{Name: evil, Pool: evil, Message: evil}}
		s.Conditions = []metav1.Condition{{Type: flexlvmv1.ConditionReady, Status: metav1.ConditionFalse, Reason: evil, Message: evil}}
	})
	s, _ := serverOf(Snapshot{
		Objects: overview.Objects{Storages: []flexlvmv1.NodeStorage{bad}, Volumes: []corev1.PersistentVolume{claimed(evil, evil, evil)}},
		Managers: []flexlvmv1.VolumeManager{{ObjectMeta: metav1.ObjectMeta{Namespace: evil, Name: evil}, Status: flexlvmv1.VolumeManagerStatus{Volumes: []flexlvmv1.VolumeStatus{{
			ID: evil, Message: evil, Replicas: 1, Nodes: []flexlvmv1.ReplicaStatus{{Node: evil, State: flexlvmv1.ReplicaState(evil), Message: evil}},
		}}}}},
		Lacks: []string{evil},
	})
	s.title = evil
	plain := s.get(s.path(""), func(r *http.Request) {
		r.URL.RawQuery = queryOfText("q", evil) + "&" + queryOfText("node", evil) + "&" + queryOfText("claim", evil) + "&" + queryOfText("class", evil)
	})
	require.Equal(t, http.StatusOK, plain.Code)
	body := plain.Body.String()
	require.NotContains(t, body, "<script>alert")
	require.NotContains(t, body, "<img")
	require.NotContains(t, body, `"'>`)
	require.NotContains(t, body, `href="javascript:`)
	require.Greater(t, strings.Count(body, "&lt;script&gt;alert(1)"), 15, "it is shown, though")

	for line := range strings.Lines(string(event([]byte(body)))) {
		require.True(t, strings.HasPrefix(line, "data: ") || line == "\n", "a field of its own: %q", line)
		require.NotContains(t, line, "\r")
	}
}

func queryOfText(name, value string) string {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	v := r.URL.Query()
	v.Set(name, value)
	return v.Encode()
}

func TestPageWithEverything(t *testing.T) {
	data := int32(70)
	s, _ := serverOf(Snapshot{Objects: overview.Objects{
		Storages: []flexlvmv1.NodeStorage{storage("a"), storage("b", missing, func(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].ThinDataPercent = &data })},
		Volumes:  []corev1.PersistentVolume{claimed("a", "pvc-1", "data-0")},
	}, Lacks: []string{"VolumeManagers cannot be read: forbidden"}})
	body := s.get(s.path("?q=data&claim=45Gi&nodes=3&node=a")).Body.String()
	for _, want := range []string{
		"1 of 2 nodes needs attention.", "LVM does not find 1 of its devices", "run pvs on the node", "VolumeManagers cannot be read: forbidden",
		"A claim of 45 GiB of class flexlvm fits on", "shop/data-0", "Released volumes on a", "number 1 in its pool&#39;s eviction order when room is needed",
		`aria-label="flexlvm of 100 GiB: 40 GiB in use (40 %), 5 GiB promised, 20 GiB reclaimable, 40 GiB free"`, `aria-label="thin data of flexlvm"`, "Thin data 70 %",
	} {
		require.Contains(t, body, want)
	}
	require.Contains(t, s.get(s.path("?claim=many&class=x")).Body.String(), "read StorageClass x: not found")
}

// A window gets an event for each visible change, and none while nothing visible changes.
func TestEvents(t *testing.T) {
	s, source := serverOf(many(3))
	s.atMost = 10 * time.Millisecond
	l, err := Listen(t.Context(), 0)
	require.NoError(t, err)
	require.True(t, l.Addr().(*net.TCPAddr).IP.IsLoopback())
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()

	response, err := http.Get(s.URL(l) + "events") //nolint:bodyclose // closed below, after the server has ended the stream
	require.NoError(t, err)
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	events := make(chan string)
	go func() {
		defer close(events)
		var one strings.Builder
		for lines := bufio.NewScanner(response.Body); lines.Scan(); {
			if text, is := strings.CutPrefix(lines.Text(), "data: "); is {
				fmt.Fprintln(&one, text)
			} else if lines.Text() == "" {
				events <- one.String()
				one.Reset()
			}
		}
	}()
	require.Contains(t, <-events, "3 nodes, and none needs attention.")
	source.version.Add(1) // a change that the window does not show
	changed := many(4)
	missing(&changed.Storages[3].Status)
	source.set(changed)
	require.Contains(t, <-events, "1 of 4 nodes needs attention.")

	_, err = Listen(t.Context(), l.Addr().(*net.TCPAddr).Port)
	require.ErrorContains(t, err, "choose another port with --port")
	cancel()
	require.NoError(t, <-served, "an interrupt is no failure")
	_, open := <-events
	require.False(t, open)
	_, _ = io.Copy(io.Discard, response.Body)
	require.NoError(t, response.Body.Close())
}
