//go:build cluster

package cluster_test

import (
	"bytes"
	"encoding/base64"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/flexlvm/flexlvm/internal/fetch/web/webtest"
	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/azure"
	"github.com/flexlvm/flexlvm/test/gcs"
	"github.com/flexlvm/flexlvm/test/served"
)

// serve runs a handler of this process in the cluster's network, behind faults.
func (l *library) serve(port string, handler http.Handler, faults ...webtest.Fault) (endpoint string) {
	l.t.Helper()
	beside, err := url.Parse(l.server.Endpoint)
	require.NoError(l.t, err)
	at, err := shared.Listen(l.ctx, "tcp", net.JoinHostPort(beside.Hostname(), port))
	require.NoError(l.t, err)
	for _, fault := range faults {
		next := handler
		handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fault(w, r, next) })
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(at) }() // until the server is closed
	l.t.Cleanup(func() { _ = server.Close() })
	return "http://" + at.Addr().String()
}

// onRange applies a fault to the first requests for a range of a path.
func onRange(times int, path string, f webtest.Fault) webtest.Fault {
	first := webtest.Times(times, path, f)
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Range") == "" {
			next.ServeHTTP(w, r)
			return
		}
		first(w, r, next)
	}
}

// lie sends wrong bytes.
func lie(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(liar{w}, r) }

type liar struct{ http.ResponseWriter }

func (l liar) Write(data []byte) (int, error) {
	other := bytes.Clone(data)
	other[0] ^= 1
	return l.ResponseWriter.Write(other)
}

// google serves the example's objects, and stalls in the middle of the large one.
func (l *library) google(large string) (manifest string, want map[string]string) {
	l.t.Helper()
	const bucket = "example-bucket"
	server, err := gcs.Start(l.ctx, served.Config{}, os.Stderr)
	require.NoError(l.t, err)
	l.t.Cleanup(func() { require.NoError(l.t, server.Stop()) })
	require.NoError(l.t, server.MakeBucket(l.ctx, bucket))
	for key, text := range map[string]string{"images/large": large, "images/deep/small": "small", "other": "other"} {
		require.NoError(l.t, server.Put(l.ctx, bucket, key, text))
	}
	object := "/storage/v1/b/" + bucket + "/o/images/large"
	endpoint := l.serve("9330", httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: server.Address}),
		onRange(1, object, webtest.After(object, 3*mib, true)), onRange(1, object, lie), gcs.Guard)
	key, err := gcs.Key(endpoint)
	require.NoError(l.t, err)
	l.kubectl("create", "secret", "generic", "gcs", "--from-literal=key.json="+string(key))
	return shippedDataset(l.t, "gcs.yaml", "credentialsSecretName: gcs", "credentialsSecretName: gcs\n        endpointURL: "+endpoint),
		map[string]string{"large": sumOf(large), "deep/small": sumOf("small")}
}

var azureKey = base64.StdEncoding.EncodeToString([]byte("the-key-of-a-test-account-is-secret"))

// microsoft serves the example's blobs. The large one changes while it is loaded, and another one is
// always corrupted.
func (l *library) microsoft(large string) (manifest string, want map[string]string) {
	l.t.Helper()
	const text = "it is small now"
	account := &azure.Account{Name: "exampleaccount", Key: azureKey, Page: 2}
	for key, text := range map[string]string{"train/large": large, "train/deep/small": "small", "other": "other", "lies/small": "small"} {
		account.Put("images", key, text, true)
	}
	change := sync.OnceFunc(func() { account.Put("images", "train/large", text, true) })
	changes := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasPrefix(r.Header.Get("X-Ms-Range")+r.Header.Get("Range"), "bytes=16777216-") {
			change()
		}
		next.ServeHTTP(w, r)
	}
	const blob = "/exampleaccount/images/lies/small"
	endpoint := l.serve("9331", account, changes, webtest.Times(1000, blob, lie)) + "/exampleaccount"
	l.kubectl("create", "secret", "generic", "azure", "--from-literal=accountKey="+azureKey)
	return shippedDataset(l.t, "azure.yaml", "credentialsSecretName: azure", "credentialsSecretName: azure\n        endpointURL: "+endpoint),
		map[string]string{"large": sumOf(text), "deep/small": sumOf("small")}
}

// repository serves the example's files at the head of a branch.
func (l *library) repository(large string) (manifest string, want map[string]string) {
	l.t.Helper()
	gateway := l.server.Pachyderm()
	l.t.Cleanup(gateway.Close)
	_, err := gateway.Commit(l.ctx, "default", "images", "master", map[string][]byte{"train/large": []byte(large), "train/deep/small": []byte("small"), "other": []byte("other")})
	require.NoError(l.t, err)
	endpoint := strings.TrimPrefix(l.serve("9332", gateway), "http://")
	l.kubectl("create", "secret", "generic", "pachyderm", "--from-literal=pachydermToken="+gateway.Token)
	return shippedDataset(l.t, "pachyderm.yaml", "pachd.default.svc:30600", endpoint),
		map[string]string{"train/large": sumOf(large), "train/deep/small": sumOf("small")}
}

// warned waits until kubectl describe shows a Warning event of a VolumeManager that contains says.
// Events are written after the status.
func (l *library) warned(name, says string) {
	l.t.Helper()
	await.Until(l.t, patience, func() string {
		warnings := l.heard(client.MatchingFields{"involvedObject.kind": "VolumeManager", "involvedObject.name": name, "type": "Warning"})
		return await.Missing(strings.Contains(warnings, says), "no event of %s warns that %s: %s", name, says, warnings)
	})
}

// The examples of clouds and of Pachyderm fill volumes on the requested nodes although a source stalls,
// sends a wrong byte, or changes meanwhile. A source that always sends wrong bytes fills none, and an
// event says so.
func TestDatasetsOfClouds(t *testing.T) {
	slots.Parallel(t, 50)
	l := newLibrary(t, "clouds")
	large := strings.Repeat("0123456789abcdef", 40<<16) // 40 MiB
	want := map[string]map[string]string{}
	lies := ""
	for name, fill := range map[string]func(string) (string, map[string]string){"gcs": l.google, "azure": l.microsoft, "pachyderm": l.repository} {
		manifest, sums := fill(large)
		require.NoError(t, l.apply(manifest))
		if want[name] = sums; name == "azure" {
			lies = strings.NewReplacer("name: azure\n", "name: lies\n", "images/train/", "images/lies/").Replace(manifest)
		}
	}
	require.NoError(t, l.apply(lies))
	for name, sums := range want {
		vm := l.until(name, loaded)
		nodes := l.bearingOf(vm, "images")
		require.Len(t, nodes, int(vm.Spec.Volumes[0].Replicas), name)
		l.reader("reader-"+name, vm, nodes[len(nodes)-1])
		got := l.read("reader-" + name)
		maps.DeleteFunc(got, func(path, _ string) bool { return strings.Contains(path, "/.flexlvm/") }) // of a destination below the volume's root
		require.Equal(t, sums, got, name)
	}
	vm := l.until("lies", failed)
	require.Contains(t, vm.Status.Volumes[0].Message, "two downloads had the same content")
	l.warned("lies", "two downloads had the same content")
	require.Empty(t, l.bearingOf(vm, "images"))
	told := l.kubectl("get", "vm,jobs,pods,events", "-o", "yaml")
	for _, secret := range []string{gcs.Token, "PRIVATE KEY", azureKey} {
		require.NotContains(t, told, secret)
	}
}
