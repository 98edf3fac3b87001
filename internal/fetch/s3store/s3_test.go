package s3store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

func TestParseEndpoint(t *testing.T) {
	for raw, want := range map[string]struct {
		host   string
		secure bool
	}{
		"": {"s3.amazonaws.com", true}, "h:1": {"h:1", true}, "http://h:1/": {"h:1", false}, "https://h": {"h", true},
	} {
		host, secure, err := parseEndpoint(raw)
		require.NoError(t, err)
		require.Equal(t, want.host, host)
		require.Equal(t, want.secure, secure)
	}
	for _, raw := range []string{"http://a:b@h", "ftp://h", "http://h/path", "http://", "http://h?x"} {
		_, _, err := parseEndpoint(raw)
		require.Error(t, err, raw)
	}
	_, _, err := parseEndpoint("http://key:hidden@h")
	require.NotContains(t, err.Error(), "hidden", "no secret in an error")
}

func TestDefaultRegion(t *testing.T) {
	for host, want := range map[string]string{
		"s3.amazonaws.com": "", "s3.eu-central-1.amazonaws.com": "", "s3.dualstack.eu-west-1.amazonaws.com:443": "", "s3.cn-north-1.amazonaws.com.cn": "",
		"minio:9000": "us-east-1", "127.0.0.1:9000": "us-east-1", "[::1]:9000": "us-east-1", "s3.example.com": "us-east-1", "amazonaws.com.example.org": "us-east-1",
	} {
		require.Equal(t, want, defaultRegion(host), host)
	}
}

// The client derives the region from the endpoint's name alone, without a request.
func TestRegionOfTheClient(t *testing.T) {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		t.Setenv(name, "")
	}
	for endpoint, want := range map[string]string{"https://s3.eu-central-1.amazonaws.com": "eu-central-1", "http://minio:9000": "us-east-1"} {
		core, err := Config{Endpoint: endpoint, Anonymous: true}.connect(store.Source{Kind: store.KindS3, Bucket: "bucket"})
		require.NoError(t, err)
		region, err := core.GetBucketLocation(t.Context(), "bucket")
		require.NoError(t, err)
		require.Equal(t, want, region)
	}
}
