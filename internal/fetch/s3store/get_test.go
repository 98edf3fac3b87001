package s3store

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Requests use the URL, and the region in the signature, that minio's client would use.
func TestLocate(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "a/key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	for name, test := range map[string]struct {
		config      Config
		url, region string
	}{
		"path":    {Config{Endpoint: "http://s3.example.org:9000"}, "http://s3.example.org:9000/bucket/", "us-east-1"},
		"virtual": {Config{Endpoint: "https://s3.example.org", Style: AddressVirtual, Region: "here"}, "https://bucket.s3.example.org/", "here"},
		"Amazon":  {Config{Region: "eu-central-1"}, "https://bucket.s3.dualstack.eu-central-1.amazonaws.com/", "eu-central-1"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := test.config.connect(store.Source{Kind: store.KindS3, Bucket: "bucket"})
			require.NoError(t, err)
			at, err := c.locate(t.Context())
			require.NoError(t, err)
			require.Equal(t, test.url, at.bucket.String())
			require.Equal(t, test.region, at.region)
			again, err := c.locate(t.Context())
			require.NoError(t, err)
			require.Same(t, at, again)
			require.Equal(t, test.url+"a%20b", at.request(t.Context(), "a b", "", http.Header{}).URL.String())
		})
	}
}

// The error of a failed request is the server's, or else that of the HTTP status.
func TestErrorOf(t *testing.T) {
	for name, test := range map[string]struct {
		status       int
		body, region string
		want         minio.ErrorResponse
		class        store.Class
	}{
		"in XML": {503, "<Error><Code>SlowDown</Code><Message>Less.</Message></Error>", "",
			minio.ErrorResponse{Code: "SlowDown", Message: "Less."}, store.Transient},
		"another region": {400, "<Error><Code>AuthorizationHeaderMalformed</Code><Region>there</Region></Error>", "",
			minio.ErrorResponse{Code: "AuthorizationHeaderMalformed", Region: "there"}, store.Fatal},
		"a region in a header": {301, "", "there", minio.ErrorResponse{Code: "301 Moved Permanently", Message: "301 Moved Permanently", Region: "there"}, store.Transient},
		"nothing, 404":         {404, "", "", minio.ErrorResponse{Code: minio.NoSuchKey, Message: "404 Not Found"}, store.Gone},
		"nothing, 412":         {412, "", "", minio.ErrorResponse{Code: minio.PreconditionFailed, Message: "412 Precondition Failed"}, store.Changed},
		"HTML, 403":            {403, "<html>no</html>", "", minio.ErrorResponse{Code: minio.AccessDenied, Message: "403 Forbidden"}, store.Denied},
		"HTML, 502":            {502, "<html>no", "", minio.ErrorResponse{Code: "502 Bad Gateway", Message: "502 Bad Gateway: <html>no"}, store.Transient},
	} {
		t.Run(name, func(t *testing.T) {
			header := http.Header{}
			if test.region != "" {
				header.Set("X-Amz-Bucket-Region", test.region)
			}
			err := errorOf(&http.Response{
				StatusCode: test.status, Status: fmt.Sprint(test.status, " ", http.StatusText(test.status)), Header: header, Body: io.NopCloser(strings.NewReader(test.body)),
			}, "bucket", "key")
			var got minio.ErrorResponse
			require.ErrorAs(t, err, &got)
			require.Equal(t, test.class, store.Classify(err))
			test.want.StatusCode, test.want.BucketName, test.want.Key = test.status, "bucket", "key"
			got.XMLName = test.want.XMLName
			require.Equal(t, test.want, got)
		})
	}
}
