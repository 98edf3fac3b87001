package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/flexlvm/flexlvm/internal/overview"
)

// A user of a wrong cluster, kubeconfig or permission gets advice.
func TestAdvice(t *testing.T) {
	said := func(kubeconfig string, args ...string) error {
		cmd := command()
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		cmd.SetArgs(append([]string{"--kubeconfig=" + kubeconfig}, args...))
		return cmd.Execute()
	}
	serving := func(answer http.HandlerFunc) (kubeconfig string) {
		server := httptest.NewServer(answer)
		t.Cleanup(server.Close)
		return kubeconfigOf(t, server.URL)
	}
	empty := serving(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/apis":
			fmt.Fprint(w, `{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`)
		case "/api":
			fmt.Fprint(w, `{"kind": "APIVersions", "versions": ["v1"]}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": "the server could not find the requested resource"}`)
		}
	})
	require.ErrorContains(t, said(empty, "status"), "list NodeStorages: ")
	require.ErrorContains(t, said(empty, "status"), "flexlvm is not installed in this cluster: check that --kubeconfig and --context select the right one")

	forbids := serving(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/apis":
			fmt.Fprint(w, `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "flexlvm.io", "versions": [{"groupVersion": "flexlvm.io/v1", "version": "v1"}]}]}`)
		case "/api":
			fmt.Fprint(w, `{"kind": "APIVersions", "versions": ["v1"]}`)
		case "/apis/flexlvm.io/v1":
			fmt.Fprint(w, `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "flexlvm.io/v1", "resources": [{"name": "nodestorages", "kind": "NodeStorage", "verbs": ["list"]}]}`)
		default:
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "nodestorages is forbidden"}`)
		}
	})
	require.ErrorContains(t, said(forbids, "status"), "nodestorages is forbidden; docs/kubectl-plugin.md lists the permissions that each command needs")

	none := filepath.Join(t.TempDir(), "none")
	require.NoError(t, os.WriteFile(none, []byte("{apiVersion: v1, kind: Config}"), 0o600))
	require.ErrorContains(t, said(none, "status"), "no kubeconfig was found, or it names no cluster; set --kubeconfig or KUBECONFIG")
}

// A user who mistypes a StorageClass gets the names of flexlvm's classes.
func TestClassesAreNamed(t *testing.T) {
	kinds, err := scheme()
	require.NoError(t, err)
	class := func(name, provisioner string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner}
	}
	c := fake.NewClientBuilder().WithScheme(kinds).WithObjects(class("fast", "flexlvm.io"), class("safe", "flexlvm.io"), class("other", "example.org")).Build()
	_, err = storageClass(t.Context(), c, "fsat")
	require.ErrorContains(t, err, `"fsat" not found; flexlvm's StorageClasses are fast, safe`)
	found, err := storageClass(t.Context(), c, "fast")
	require.NoError(t, err)
	require.Equal(t, "fast", found.Name)
}

func TestNothingIsFound(t *testing.T) {
	require.Equal(t, "no volumes", none(overview.Filter{}))
	require.Equal(t, "no volumes of claim data in namespace shop on node a", none(overview.Filter{Claim: "data", Namespace: "shop", Node: "a"}))
}
