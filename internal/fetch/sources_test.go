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
			require.Equal(t, want.list, s.ListPrefix())
			require.Equal(t, want.glob, s.Glob != nil)
			require.Equal(t, want.single, s.Single())
		})
	}
	for _, raw := range []string{"", "/d", "b/k", "s3://", "s3:///k", "s3://bk", "s3://b t", "s3://10.0.0.1/k", "ftp://h/x", "file://d", "pachyderm://r/x", "pachyderm://@m/", "pachyderm://r@/x", "pachyderm://a.b@m/", "s3://bkt/[x"} {
		_, err := ParseSource(raw)
		require.Error(t, err, raw)
	}
}
