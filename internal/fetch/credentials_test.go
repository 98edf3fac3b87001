package fetch

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/s3store"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

const (
	stsGood = `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>key</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>session</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`
	stsError = `<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>%CODE</Code><Message>the message</Message></Error></ErrorResponse>`
)

func stsErrorOf(code string) string { return strings.ReplaceAll(stsError, "%CODE", code) }

// noCredentials makes sure that neither the environment nor files provide credentials.
func noCredentials(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY"} {
		t.Setenv(name, "")
	}
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("AWS_CONFIG_FILE", none)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", none)
}

// sts starts a token service that returns the answers in turn and repeats the last one, and
// returns a chain that uses it.
func sts(t *testing.T, answers ...http.HandlerFunc) *s3store.Chain {
	t.Helper()
	noCredentials(t)
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers[min(int(asked.Add(1)), len(answers))-1](w, r)
	}))
	t.Cleanup(server.Close)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("token"), 0o600))
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token)
	t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/reader")
	client := &http.Client{Timeout: 5 * time.Second, Transport: s3store.BufferedResponses{RoundTripper: http.DefaultTransport}}
	return s3store.NewChain(&credentials.IAM{Client: client, Endpoint: server.URL})
}

func answer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func TestPassingFailureOfCredentials(t *testing.T) {
	closed := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte("<Assume"))
	}
	late := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the closed connection is not noticed
		<-r.Context().Done()
	}
	for name, fault := range map[string]http.HandlerFunc{
		"503":       answer(http.StatusServiceUnavailable, "<html>no"),
		"500":       answer(http.StatusInternalServerError, stsErrorOf("InternalFailure")),
		"throttled": answer(http.StatusBadRequest, stsErrorOf("Throttling")),
		"closed":    closed, "cut": cut, "late": late,
	} {
		t.Run(name, func(t *testing.T) {
			c := sts(t, fault, answer(http.StatusOK, stsGood))
			_, err := c.Retrieve()
			require.Error(t, err)
			require.Equal(t, store.Transient, store.Classify(err), "%v", err)
			value, err := c.Retrieve()
			require.NoError(t, err)
			require.Equal(t, "key", value.AccessKeyID)
		})
	}
}

func TestFinalFailureOfCredentials(t *testing.T) {
	for name, fault := range map[string]http.HandlerFunc{
		"403":         answer(http.StatusForbidden, stsErrorOf("AccessDenied")),
		"400":         answer(http.StatusBadRequest, stsErrorOf("InvalidIdentityToken")),
		"403 of HTML": answer(http.StatusForbidden, "<html>no"),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sts(t, fault).Retrieve()
			require.ErrorIs(t, err, store.ErrNoCredentials)
			require.Equal(t, store.Fatal, store.Classify(err))
			require.ErrorContains(t, err, "--credentials-dir")
		})
	}
	t.Run("no token", func(t *testing.T) {
		c := sts(t, answer(http.StatusOK, stsGood))
		t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", filepath.Join(t.TempDir(), "none"))
		_, err := c.Retrieve()
		require.ErrorIs(t, err, store.ErrNoCredentials)
	})
}

// A platform's service that is not configured and does not answer means no credentials. Once it has
// returned some, a failed refresh is a transient error.
func TestCredentialsOfTheMachine(t *testing.T) {
	noCredentials(t)
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	machine := &credentials.IAM{Client: &http.Client{Transport: s3store.BufferedResponses{RoundTripper: http.DefaultTransport}}, Endpoint: away.URL}
	c := s3store.NewChain(machine)
	_, err := c.Retrieve()
	require.ErrorIs(t, err, store.ErrNoCredentials)
	c.Required = machine // as after it has returned some
	_, err = c.Retrieve()
	require.Equal(t, store.Transient, store.Classify(err), "%v", err)
}

// A run continues once it gets credentials, and fails with a retryable error if it gets none.
func TestRunWaitsForCredentials(t *testing.T) {
	b := newBed(t)
	noCredentials(t)
	want := b.dataset()
	var asked, most atomic.Int64
	most.Store(1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) <= most.Load() {
			answer(http.StatusServiceUnavailable, "")(w, r)
			return
		}
		answer(http.StatusOK, `{"AccessKeyId":"key","SecretAccessKey":"secret","Token":"t","Expiration":"2099-01-01T00:00:00Z"}`)(w, r)
	}))
	t.Cleanup(server.Close)
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.URL+"/role")
	_, _, err := b.run("s3://bucket/set/")
	require.NoError(t, err)
	b.mustHave(want)

	b.dest += "2"
	most.Store(1000)
	_, _, err = b.run("s3://bucket/set/")
	var e *store.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.Retryable, "%v", err)
}
