package serve_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/flexlvm/flexlvm/internal/serve"
)

// apiServer knows two tokens, and allows one of their bearers to get /metrics.
type apiServer struct {
	asked atomic.Int32
	away  atomic.Bool
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.away.Load() {
		http.Error(w, "away", http.StatusServiceUnavailable)
		return
	}
	a.asked.Add(1)
	w.Header().Set("Content-Type", "application/json")
	switch r.Method + " " + r.URL.Path {
	case "POST /apis/authentication.k8s.io/v1/tokenreviews":
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		review.APIVersion, review.Kind = "authentication.k8s.io/v1", "TokenReview"
		review.Status = authenticationv1.TokenReviewStatus{
			Authenticated: review.Spec.Token == "reader" || review.Spec.Token == "nobody",
			User:          authenticationv1.UserInfo{Username: review.Spec.Token, Extra: map[string]authenticationv1.ExtraValue{"pod": {"p"}}},
		}
		_ = json.NewEncoder(w).Encode(review)
	case "POST /apis/authorization.k8s.io/v1/subjectaccessreviews":
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		review.APIVersion, review.Kind = "authorization.k8s.io/v1", "SubjectAccessReview"
		what := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == "reader" && review.Spec.Extra["pod"][0] == "p" &&
			review.Spec.ResourceAttributes == nil && what.Path == "/metrics" && what.Verb == "get"
		_ = json.NewEncoder(w).Encode(review)
	default:
		http.NotFound(w, r)
	}
}

var anyCertificate = &http.Client{Timeout: time.Minute, Transport: &http.Transport{
	DisableKeepAlives: true,
	TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // the server created the certificate itself
}}

// scrape gets metrics with a token.
func scrape(t *testing.T, client *http.Client, url, authorization string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

func guarded(t *testing.T, o serve.Options) (*apiServer, serve.Addresses) {
	t.Helper()
	api := &apiServer{}
	behind := httptest.NewServer(api)
	t.Cleanup(behind.Close)
	o.Address, o.HealthAddress, o.Auth = "127.0.0.1:0", "127.0.0.1:0", true
	server := serve.New(serve.NewRegistry(), well)
	at, err := server.Listen(t.Context(), o, &rest.Config{Host: behind.URL})
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return api, at
}

func TestMetricsForWhoMayReadThem(t *testing.T) {
	api, at := guarded(t, serve.Options{})
	url := "https://" + at.Metrics + "/metrics"
	for authorization, want := range map[string]int{
		"":                http.StatusUnauthorized,
		"Basic cmVhZGVy":  http.StatusUnauthorized,
		"Bearer ":         http.StatusUnauthorized,
		"Bearer stranger": http.StatusUnauthorized,
		"Bearer nobody":   http.StatusForbidden,
		"Bearer reader":   http.StatusOK,
	} {
		code, body := scrape(t, anyCertificate, url, authorization)
		require.Equal(t, want, code, "%q: %s", authorization, body)
		if want != http.StatusOK {
			require.NotContains(t, body, "flexlvm_build_info")
		}
	}

	// The API server's answers are cached for a while, even while it is unreachable. Other tokens
	// cannot be checked then.
	asked := api.asked.Load()
	api.away.Store(true)
	for range 3 {
		code, _ := scrape(t, anyCertificate, url, "Bearer reader")
		require.Equal(t, http.StatusOK, code)
	}
	require.Equal(t, asked, api.asked.Load())
	code, body := scrape(t, anyCertificate, url, "Bearer another")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.NotContains(t, body, "away", "it is not for strangers")
	api.away.Store(false)
	code, _ = scrape(t, anyCertificate, url, "Bearer another")
	require.Equal(t, http.StatusUnauthorized, code, "an error is no verdict")

	// Health needs neither a token nor TLS, and each port serves only its own path.
	healthy(t, at.Health)
	code, _ = scrape(t, anyCertificate, "http://"+at.Health+"/metrics", "Bearer reader")
	require.Equal(t, http.StatusNotFound, code)
	code, _ = scrape(t, anyCertificate, "https://"+at.Metrics+"/healthz", "Bearer reader")
	require.Equal(t, http.StatusNotFound, code)
	code, _ = scrape(t, anyCertificate, "http://"+at.Metrics+"/metrics", "Bearer reader")
	require.Equal(t, http.StatusBadRequest, code, "a token is not taken in the clear")
}

// A flood of unknown tokens must cost neither the API server's time nor this process's memory.
func TestFloodOfTokens(t *testing.T) {
	api, at := guarded(t, serve.Options{})
	url := "https://" + at.Metrics + "/metrics"
	code, _ := scrape(t, anyCertificate, url, "Bearer reader")
	require.Equal(t, http.StatusOK, code)
	begun := time.Now()
	done := make(chan struct{})
	for i := range 40 {
		go func() {
			defer func() { done <- struct{}{} }()
			request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			request.Header.Set("Authorization", fmt.Sprintf("Bearer stranger-%d", i))
			if response, err := anyCertificate.Do(request); err == nil {
				response.Body.Close()
			}
		}()
	}
	code, _ = scrape(t, anyCertificate, url, "Bearer reader")
	require.Equal(t, http.StatusOK, code, "who is known is let through meanwhile")
	for range 40 {
		<-done
	}
	require.LessOrEqual(t, api.asked.Load(), int32(2+10+5*int(1+time.Since(begun).Seconds())))
}

func TestCertificateFiles(t *testing.T) {
	dir := t.TempDir()
	o := serve.Options{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	_, err := serve.New(serve.NewRegistry(), well).Listen(t.Context(), serve.Options{
		Address: "127.0.0.1:0", HealthAddress: "127.0.0.1:0", Auth: true, CertFile: o.CertFile, KeyFile: o.KeyFile,
	}, &rest.Config{})
	require.ErrorContains(t, err, "--metrics-tls-cert-file")

	authority := serve.WriteCertificate(t, o.CertFile, o.KeyFile)
	_, at := guarded(t, o)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: authority, ServerName: "localhost"}}}
	code, _ := scrape(t, client, "https://"+at.Metrics+"/metrics", "Bearer reader")
	require.Equal(t, http.StatusOK, code)
}

func TestOptionsThatAreWrong(t *testing.T) {
	for says, o := range map[string]serve.Options{
		"--metrics-auth needs --health-address":        {Auth: true},
		"go together":                                  {Auth: true, HealthAddress: ":1", CertFile: "c"},
		"--metrics-tls-cert-file needs --metrics-auth": {CertFile: "c", KeyFile: "k"},
	} {
		require.ErrorContains(t, o.Check(), says)
	}
}
