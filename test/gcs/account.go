package gcs

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
)

// Token is the token that Guard issues.
const Token = "short-lived"

// Key returns the key.json of a new service account whose tokens Guard issues at the server's /token.
func Key(server string) ([]byte, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]string{
		"type": "service_account", "client_email": "me@project.example", "private_key_id": "1", "token_uri": server + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
	})
}

// Guard issues a token for a signed assertion, and forwards only requests with that token to next.
func Guard(w http.ResponseWriter, r *http.Request, next http.Handler) {
	switch {
	case r.URL.Path == "/token" && strings.Count(r.PostFormValue("assertion"), ".") == 2:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":3600}`, Token)
	case r.Header.Get("Authorization") != "Bearer "+Token:
		http.Error(w, "no", http.StatusUnauthorized)
	default:
		next.ServeHTTP(w, r)
	}
}
