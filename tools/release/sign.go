package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
)

// sign returns the signature of content in the format of `cosign sign-blob`: an ECDSA signature on P-256 of its
// SHA-256, in ASN.1 and base64. keyFile holds the private key in PEM, unencrypted. The same key and content give
// the same signature (RFC 6979).
func sign(keyFile string, content []byte) ([]byte, error) {
	key, err := readKey(keyFile)
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w", keyFile, err)
	}
	digest := sha256.Sum256(content)
	signature, err := key.Sign(nil, digest[:], crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("sign with key %s: %w", keyFile, err)
	}
	return []byte(base64.StdEncoding.EncodeToString(signature)), nil
}

func readKey(file string) (*ecdsa.PrivateKey, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, fmt.Errorf("it is not PEM; make one with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256`")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w; it must be PKCS #8, and not encrypted", err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("it is a %T; an ECDSA key on P-256 is needed", parsed)
	}
	return key, nil
}
