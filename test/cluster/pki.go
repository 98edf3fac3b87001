package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// authority signs every certificate of a cluster. It exists only in the process that prepares the cluster; only its
// certificate is written to disk.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// keyPair is a certificate and its key, in PEM.
type keyPair struct {
	cert, key []byte
}

// subject identifies the holder of a certificate. With hosts, it is a server certificate.
type subject struct {
	name   string
	groups []string
	hosts  []string
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make cluster CA: %w", err)
	}
	template := certTemplate(subject{name: "flexlvm test cluster"})
	template.IsCA = true
	template.KeyUsage |= x509.KeyUsageCertSign
	template.ExtKeyUsage = nil // otherwise it would restrict every certificate that it signs
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make cluster CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make cluster CA: %w", err)
	}
	return &authority{cert: cert, key: key, pem: pemOf("CERTIFICATE", der)}, nil
}

func certTemplate(s subject) *x509.Certificate {
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{CommonName: s.name, Organization: s.groups},
		NotBefore:             now.Add(-time.Hour), // the guests' clocks may differ slightly
		NotAfter:              now.Add(30 * 24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	for _, host := range s.hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if len(s.hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return template
}

func (a *authority) issue(s subject) (keyPair, error) {
	pair, key, err := newKey()
	if err != nil {
		return keyPair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, certTemplate(s), a.cert, &key.PublicKey, a.key)
	if err != nil {
		return keyPair{}, fmt.Errorf("issue certificate for %s: %w", s.name, err)
	}
	pair.cert = pemOf("CERTIFICATE", der)
	return pair, nil
}

// newKey creates a key. The pair's cert is the bare public key, as needed for service account tokens.
func newKey() (keyPair, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, nil, fmt.Errorf("make key: %w", err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return keyPair{}, nil, fmt.Errorf("make key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return keyPair{}, nil, fmt.Errorf("make key: %w", err)
	}
	return keyPair{cert: pemOf("PUBLIC KEY", public), key: pemOf("EC PRIVATE KEY", private)}, key, nil
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// kubeconfig returns a client configuration that needs no other file.
func (a *authority) kubeconfig(s subject) ([]byte, error) {
	pair, err := a.issue(s)
	if err != nil {
		return nil, err
	}
	b64 := base64.StdEncoding.EncodeToString
	return clientConfig(a.pem, s.name, fmt.Sprintf("client-certificate-data: %s\n    client-key-data: %s", b64(pair.cert), b64(pair.key))), nil
}

// clientConfig returns a kubeconfig of a user with the lines that authenticate the user.
func clientConfig(authority []byte, user, proof string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: cluster
clusters:
- name: cluster
  cluster:
    server: https://%s
    certificate-authority-data: %s
users:
- name: %q
  user:
    %s
contexts:
- name: cluster
  context: {cluster: cluster, user: %q}
`, apiServerAddress, base64.StdEncoding.EncodeToString(authority), user, proof, user)
}
