package kube_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/flexlvm/flexlvm/internal/kube"
)

func TestConfigInCluster(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "6443")
	_, err := kube.Config("", dir)
	require.ErrorContains(t, err, "outside a cluster give --kubeconfig")
	require.ErrorContains(t, err, "token")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte("secret\n"), 0o600))
	_, err = kube.Config("", dir)
	require.ErrorContains(t, err, "ca.crt")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("authority"), 0o600))
	config, err := kube.Config("", dir)
	require.NoError(t, err)
	require.Equal(t, "https://[fd00::1]:6443", config.Host)
	require.Equal(t, "secret", config.BearerToken)
	require.Equal(t, filepath.Join(dir, "token"), config.BearerTokenFile, "a token that is replaced would not be seen")
	require.Equal(t, filepath.Join(dir, "ca.crt"), config.CAFile)

	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	_, err = kube.Config("", dir)
	require.ErrorContains(t, err, "KUBERNETES_SERVICE_HOST")
	_, err = kube.Config(filepath.Join(dir, "nothing"), dir)
	require.ErrorContains(t, err, "read --kubeconfig")
}

func TestClusterUID(t *testing.T) {
	answer := `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"6e2c0b0a"}}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "/api/v1/namespaces/kube-system", r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	client, err := kube.NewClient(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	uid, err := client.Cluster(t.Context())
	require.NoError(t, err)
	require.Equal(t, "6e2c0b0a", uid)

	answer = `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system"}}`
	_, err = client.Cluster(t.Context())
	require.ErrorContains(t, err, "gave none", "an empty UID would make every cluster ours")
	_, err = client.Node(t.Context(), "x/../../"+corev1.NamespaceDefault)
	require.Error(t, err, "a name must stay one component of the path")
}
