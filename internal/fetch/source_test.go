package fetch

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseSource(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef"
	tests := map[string]struct {
		bucket, key, prefix, list string
		glob, single              bool
	}{
		"s3://bkt":                          {bucket: "bkt"},
		"s3://bkt/":                         {bucket: "bkt"},
		"s3://bkt/k":                        {bucket: "bkt", key: "k", list: "k", single: true},
		"s3://bkt/p/k":                      {bucket: "bkt", key: "p/k", prefix: "p/", list: "p/k", single: true},
		"s3://bkt/p/":                       {bucket: "bkt", key: "p/", prefix: "p/", list: "p/"},
		"s3://bkt/p/*.csv":                  {bucket: "bkt", key: "p/*.csv", prefix: "p/", list: "p/", glob: true},
		"s3://bkt/p/x*/y":                   {bucket: "bkt", key: "p/x*/y", prefix: "p/", list: "p/x", glob: true},
		`s3://bkt/p/a\[1]`:                  {bucket: "bkt", key: "p/a[1]", prefix: "p/", list: "p/a[1]", single: true},
		"s3://bkt/%20 #?x":                  {bucket: "bkt", key: "%20 #?x", list: "%20 #", glob: true},
		"pachyderm://r@master/p/":           {bucket: "master.r", key: "p/", prefix: "p/", list: "p/"},
		"pachyderm://r@master":              {bucket: "master.r"},
		"pachyderm://proj/r@dev/":           {bucket: "dev.r.proj"},
		"pachyderm://r@" + commit + "/x":    {bucket: commit + ".master.r", key: "x", list: "x", single: true},
		"pachyderm://r@dev=" + commit + "/": {bucket: commit + ".dev.r"},
		"file:///d/":                        {key: "/d/", prefix: "/d/", list: "/d/"},
		"file:///d/f[1].csv":                {key: "/d/f[1].csv", prefix: "/d/", list: "/d/f[1].csv", single: true},
	}
	for raw, want := range tests {
		t.Run(raw, func(t *testing.T) {
			s, err := ParseSource(raw)
			require.NoError(t, err)
			require.Equal(t, want.bucket, s.Bucket)
			require.Equal(t, want.key, s.Key)
			require.Equal(t, want.prefix, s.Prefix)
			require.Equal(t, want.list, s.listPrefix())
			require.Equal(t, want.glob, s.Glob != nil)
			require.Equal(t, want.single, s.single())
		})
	}
	for _, raw := range []string{"", "/d", "b/k", "s3://", "s3:///k", "s3://bk", "s3://b t", "s3://10.0.0.1/k", "ftp://h/x", "file://d", "pachyderm://r/x", "pachyderm://@m/", "pachyderm://r@/x", "pachyderm://a.b@m/", "s3://bkt/[x"} {
		_, err := ParseSource(raw)
		require.Error(t, err, raw)
	}
}

func TestGlob(t *testing.T) {
	tests := []struct {
		pattern string
		yes, no []string
	}{
		{"*.csv", []string{"a.csv", ".csv"}, []string{"d/a.csv", "a.csv2", "acsv"}},
		{"d/**", []string{"d/a", "d/a/b"}, []string{"d", "e/a"}},
		{"a/**/b", []string{"a/b", "a/x/b", "a/x/y/b"}, []string{"ab", "a/xb"}},
		{"**/x", []string{"x", "a/x"}, []string{"ax"}},
		{"f?.[a-c]x", []string{"f1.ax", "fé.bx"}, []string{"f/.ax", "f1.dx", "f.ax"}},
		{"[!a]x", []string{"bx"}, []string{"ax", "/x"}},
		{"[]x]", []string{"]", "x"}, []string{"y"}},
		{`a\*b`, []string{"a*b"}, []string{"axb"}},
		{"$(x);.+^", []string{"$(x);.+^"}, []string{"$(x);y+^"}},
		{"é*", []string{"éa\n"}, []string{"e"}},
	}
	for _, test := range tests {
		g, err := compileGlob(test.pattern)
		require.NoError(t, err, test.pattern)
		for _, name := range test.yes {
			require.True(t, g.match(name), "%q should match %q", test.pattern, name)
		}
		for _, name := range test.no {
			require.False(t, g.match(name), "%q should not match %q", test.pattern, name)
		}
	}
	for _, pattern := range []string{"[", "[a", "[z-a]"} {
		_, err := compileGlob(pattern)
		require.Error(t, err, pattern)
	}
}

func TestSelection(t *testing.T) {
	s, err := newSelection([]string{"*.csv", "img/**"}, []string{"tmp*", "img/raw/*"})
	require.NoError(t, err)
	for path, want := range map[string]bool{
		"a.csv": true, "d/a.csv": true, "img/x": true, "img/raw/x": false, "d/tmp.csv": false, "a.txt": false,
	} {
		require.Equal(t, want, s.wants(path), path)
	}
	all, err := newSelection(nil, []string{"*.tmp"})
	require.NoError(t, err)
	require.True(t, all.wants("x"))
	require.False(t, all.wants("d/x.tmp"))
	_, err = newSelection([]string{"["}, nil)
	require.ErrorContains(t, err, "--include")
}

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

// Nothing is sent for it: the client knows regions from names, and no other.
func TestRegionOfTheClient(t *testing.T) {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		t.Setenv(name, "")
	}
	for endpoint, want := range map[string]string{"https://s3.eu-central-1.amazonaws.com": "eu-central-1", "http://minio:9000": "us-east-1"} {
		core, err := S3{Endpoint: endpoint, Anonymous: true}.connect(Source{Kind: kindS3, Bucket: "bucket"})
		require.NoError(t, err)
		region, err := core.GetBucketLocation(t.Context(), "bucket")
		require.NoError(t, err)
		require.Equal(t, want, region)
	}
}
