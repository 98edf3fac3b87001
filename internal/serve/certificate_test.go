package serve

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// WriteCertificate writes a certificate for localhost, and returns a pool that trusts it.
func WriteCertificate(t *testing.T, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	made, err := selfSigned(time.Now())
	require.NoError(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	require.NoError(t, err)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made.Certificate[0]})
	require.NoError(t, os.WriteFile(certFile, certificate, 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(certificate))
	return pool
}

// Certificate files are renewed while the process runs, and are not always complete when read.
func TestCertificateIsReadAgain(t *testing.T) {
	f := &certificateFiles{cert: filepath.Join(t.TempDir(), "crt"), key: filepath.Join(t.TempDir(), "key")}
	WriteCertificate(t, f.cert, f.key)
	require.NoError(t, f.read())
	first, err := f.get(nil)
	require.NoError(t, err)

	WriteCertificate(t, f.cert, f.key)
	again, err := f.get(nil)
	require.NoError(t, err)
	require.Equal(t, first, again, "not at every handshake")
	f.at = f.at.Add(-2 * rereadAfter)
	second, err := f.get(nil)
	require.NoError(t, err)
	require.NotEqual(t, first.Certificate, second.Certificate)

	require.NoError(t, os.WriteFile(f.key, []byte("half"), 0o600))
	f.at = f.at.Add(-2 * rereadAfter)
	kept, err := f.get(nil)
	require.NoError(t, err)
	require.Equal(t, second, kept)
}
