//go:build s3

package s3

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/stretchr/testify/require"
)

// connect returns a client that retries nothing.
func connect(t *testing.T, endpoint, access, secret string) *minio.Client {
	t.Helper()
	client, err := minio.New(strings.TrimPrefix(endpoint, "http://"), &minio.Options{
		Creds: credentials.NewStaticV4(access, secret, ""), BucketLookup: minio.BucketLookupPath, MaxRetries: 1,
	})
	require.NoError(t, err)
	return client
}

// read returns an object's content.
func read(ctx context.Context, client *minio.Client, bucket, key string) ([]byte, error) {
	object, err := client.GetObject(ctx, bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return nil, err
	}
	defer object.Close()
	return io.ReadAll(object)
}

func TestProxy(t *testing.T) {
	s := serve(t, Config{})
	ctx := t.Context()
	require.NoError(t, s.MakeBucket(ctx, "data", false))
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<12) // 64 KiB
	_, err := s.Put(ctx, "data", "a/key", body, true)
	require.NoError(t, err)
	p, err := s.Proxy()
	require.NoError(t, err)
	t.Cleanup(p.Close)
	client := connect(t, p.Endpoint, s.Access, s.Secret)

	for name, c := range map[string]struct {
		fault Fault
		fails string // "" if the whole body arrives
		body  func([]byte) []byte
		sent  int64
	}{
		"nothing":       {sent: 1 << 16},
		"others":        {fault: Fault{Path: "/other", Status: 500}, sent: 1 << 16},
		"refusal":       {fault: Fault{Method: "GET", Path: "/key", Status: 403, Code: "AccessDenied"}, fails: "AccessDenied"},
		"cut":           {fault: Fault{Method: "GET", Path: "/key", Cut: After(1000)}, fails: "unexpected EOF", sent: 1000},
		"reset":         {fault: Fault{Method: "GET", Path: "/key", Reset: After(1000)}, fails: "connection reset", sent: 1000},
		"altered":       {fault: Fault{Path: "/key", Edit: Flip(77)}, body: Flip(77), sent: 1 << 16},
		"short":         {fault: Fault{Path: "/key", Edit: Shorten(10)}, body: Shorten(10), sent: 10},
		"delayed":       {fault: Fault{Path: "/key", Delay: time.Millisecond}, sent: 1 << 16},
		"hung":          {fault: Fault{Path: "/key", Hang: After(1000)}, fails: "context canceled", sent: 1000},
		"slow":          {fault: Fault{Path: "/key", Drip: 50 * time.Millisecond}, fails: "deadline exceeded", sent: -1},
		"once, skipped": {fault: Fault{Method: "GET", Path: "/key", Status: 500, Skip: 1, Times: 1}, sent: 1 << 16},
	} {
		t.Run(name, func(t *testing.T) {
			p.Inject(c.fault)
			p.Forget()
			limit := time.Minute
			if c.fails == "deadline exceeded" {
				limit = 2 * time.Second
			}
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			if c.fault.Hang != nil {
				go func() { // the read does not end by itself
					for ctx.Err() == nil && p.Sent("/key") != c.sent {
						time.Sleep(time.Millisecond)
					}
					cancel()
				}()
			}
			got, err := read(ctx, client, "data", "a/key")
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
			} else {
				require.NoError(t, err)
				want := body
				if c.body != nil {
					want = c.body(body)
				}
				require.Equal(t, want, got)
			}
			if c.sent >= 0 {
				require.Eventually(t, func() bool { return p.Sent("/key") == c.sent }, time.Minute, time.Millisecond)
			} else {
				require.Less(t, p.Sent("/key"), int64(100))
			}
		})
	}
}

func TestProxyAddsEntries(t *testing.T) {
	s := serve(t, Config{})
	require.NoError(t, s.MakeBucket(t.Context(), "data", false))
	p, err := s.Proxy(Fault{Query: "list-type", Edit: Entries("../out", "a<b")})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	var keys []string
	for o := range connect(t, p.Endpoint, s.Access, s.Secret).ListObjects(t.Context(), "data", minio.ListObjectsOptions{Recursive: true}) {
		require.NoError(t, o.Err)
		keys = append(keys, o.Key)
	}
	require.Equal(t, []string{"../out", "a<b"}, keys)
}
