package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/serve"
)

// The certificate is in a Secret volume of the pod. The daemon reads it after it has entered the host's namespaces.
func TestCertificateFromTheHost(t *testing.T) {
	o := options{http: serve.Options{Auth: true, CertFile: "/certs/tls.crt", KeyFile: "/keys/tls.key"}}
	require.Equal(t, []string{kube.ServiceAccountDir, "/certs", "/keys"}, o.podDirs())

	missing := o
	_, err := missing.fromHost([]string{"/proc/self/fd/7", "/proc/self/fd/8", ""})
	require.EqualError(t, err, "--metrics-tls-key-file is /keys/tls.key, and the pod has no directory /keys; mount the Secret there")

	account, err := o.fromHost([]string{"/proc/self/fd/7", "/proc/self/fd/8", "/proc/self/fd/9"})
	require.NoError(t, err)
	require.Equal(t, "/proc/self/fd/7", account)
	require.Equal(t, serve.Options{Auth: true, CertFile: "/proc/self/fd/8/tls.crt", KeyFile: "/proc/self/fd/9/tls.key"}, o.http)

	none := options{}
	require.Equal(t, []string{kube.ServiceAccountDir}, none.podDirs())
	account, err = none.fromHost([]string{""})
	require.NoError(t, err)
	require.Empty(t, account)
	require.Equal(t, serve.Options{}, none.http)
}
