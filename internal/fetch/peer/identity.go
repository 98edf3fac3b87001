package peer

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// TokenFile is the file of a directory that holds the token.
const TokenFile = "token"

// minToken is the least length of a token, in bytes. Any client that connects to a peer sees the
// peer's public key, and could find a token that is easy to guess.
const minToken = 32

// errWrongToken: the other side does not have the token of the dataset.
var errWrongToken = errors.New("the other side does not have the token of this dataset")

// Identity is what the peers of one dataset share.
type Identity struct {
	certificate tls.Certificate
	public      ed25519.PublicKey
}

// ReadIdentity returns the identity of a dataset from the token in a directory.
func ReadIdentity(dir, dataset string) (*Identity, error) {
	token, err := os.ReadFile(filepath.Join(dir, TokenFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no file %q in %s; the Secret that peersSecretName names needs the entry %q", TokenFile, dir, TokenFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read the token of peers: %w", err)
	}
	return NewIdentity(bytes.TrimSpace(token), dataset)
}

// NewIdentity returns the identity of a dataset. The same token yields another identity for each
// dataset.
func NewIdentity(token []byte, dataset string) (*Identity, error) {
	if len(token) < minToken {
		return nil, fmt.Errorf("the token of peers has %d bytes; give %d or more that nobody can guess, such as from openssl rand -hex 32", len(token), minToken)
	}
	seed, err := hkdf.Key(sha256.New, token, nil, "flexlvm peers of dataset "+dataset, ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("derive the key of peers: %w", err)
	}
	key := ed25519.NewKeyFromSeed(seed)
	public := key.Public().(ed25519.PublicKey)
	// Peers check nothing of the certificate but its key.
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	if err != nil {
		return nil, fmt.Errorf("create the certificate for peers: %w", err)
	}
	return &Identity{certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, public: public}, nil
}

// tls returns the TLS configuration of both sides. Peers ignore names and authorities: TLS proves that
// the other side has the key of its certificate, and verify that this is the dataset's key.
func (i *Identity) tls() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{i.certificate}, SessionTicketsDisabled: true,
		ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true, VerifyConnection: i.verify,
	}
}

func (i *Identity) verify(state tls.ConnectionState) error {
	if len(state.PeerCertificates) != 1 {
		return errWrongToken
	}
	public, is := state.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
	if !is || subtle.ConstantTimeCompare(public, i.public) != 1 {
		return errWrongToken
	}
	return nil
}
