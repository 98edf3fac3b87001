package s3store

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/signer"
	"github.com/stretchr/testify/require"
)

// Requests are signed as minio's client signs them.
func TestSign(t *testing.T) {
	for name, test := range map[string]struct {
		key, version, token string
		header              http.Header
	}{
		"plain":          {key: "a/b.bin"},
		"odd characters": {key: "a b/ü+%2F?#&=~*'()$@!/./..//x"},
		"a version":      {key: "a", version: "3/L4 kqt+JlcpXroDTDmJ"},
		"a token":        {key: "a", token: "a/long+token=="},
		"a part": {key: "a", header: http.Header{
			"Range": {"bytes=0-99"}, "If-Match": {`"a  quoted tag"`}, "X-Amz-Checksum-Mode": {"ENABLED"}, "Accept-Encoding": {"gzip"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			at := &location{bucket: url.URL{Scheme: "http", Host: "127.0.0.1:9000", Path: "/bucket/"}}
			header := test.header
			if header == nil {
				header = http.Header{}
			}
			theirs := at.request(t.Context(), test.key, test.version, header)
			theirs.Header.Set("X-Amz-Content-Sha256", emptyBody)
			theirs = signer.SignV4(*theirs, "key", "secret", test.token, "eu-central-1")
			when, err := time.Parse("20060102T150405Z", theirs.Header.Get("X-Amz-Date"))
			require.NoError(t, err)

			c := &connection{}
			value := credentials.Value{AccessKeyID: "key", SecretAccessKey: "secret", SessionToken: test.token}
			for range 2 { // the second time with the cached key
				own := at.request(t.Context(), test.key, test.version, header)
				c.sign(own, value, "eu-central-1", when)
				require.Equal(t, theirs.Header, own.Header)
				require.Equal(t, theirs.URL.RequestURI(), own.URL.RequestURI())
			}
			other := at.request(t.Context(), test.key, test.version, header)
			c.sign(other, value, "eu-central-1", when.Add(24*time.Hour))
			require.NotEqual(t, theirs.Header.Get("Authorization"), other.Header.Get("Authorization"), "each day has its key")
		})
	}
}
