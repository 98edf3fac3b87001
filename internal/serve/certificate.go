package serve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"sync"
	"time"
)

type getCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// certificates returns the certificate from the files, or, without files, a self-signed one. That
// protects tokens from eavesdropping; to let clients verify the server, give files.
func certificates(certFile, keyFile string) (getCertificate, error) {
	if certFile == "" {
		own, err := selfSigned(time.Now())
		if err != nil {
			return nil, fmt.Errorf("make a certificate for /metrics: %w", err)
		}
		return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own, nil }, nil
	}
	f := &certificateFiles{cert: certFile, key: keyFile}
	if err := f.read(); err != nil {
		return nil, fmt.Errorf("read --metrics-tls-cert-file and --metrics-tls-key-file: %w", err)
	}
	return f.get, nil
}

// selfSigned creates a certificate that outlives the process.
func selfSigned(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: "flexlvm metrics"},
		DNSNames:     []string{"localhost"},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(10, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// rereadAfter is the maximum age of a certificate in memory. Files in pods change about a minute after their
// Secret, and certificates are renewed long before they expire.
const rereadAfter = time.Minute

type certificateFiles struct {
	cert, key string

	mu   sync.Mutex
	last *tls.Certificate
	at   time.Time
}

func (f *certificateFiles) read() error {
	f.at = time.Now()
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return err
	}
	f.last = &pair
	return nil
}

func (f *certificateFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.at) > rereadAfter {
		_ = f.read() // the files may be half written; the last certificate still works
	}
	return f.last, nil
}
