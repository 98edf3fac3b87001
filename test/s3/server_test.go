//go:build s3

package s3

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"
)

// serve starts a server that ends with the test.
func serve(t *testing.T, cfg Config) *Server {
	t.Helper()
	cfg.Log = os.Stderr
	s, err := Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	return s
}

func TestServer(t *testing.T) {
	s := serve(t, Config{})
	ctx := t.Context()
	require.NoError(t, s.MakeBucket(ctx, "data", true))
	body := bytes.Repeat([]byte("0123456789abcdef"), 6<<16) // 6 MiB
	sum := md5.Sum(body)

	first, err := s.Put(ctx, "data", "a/plain", body, false)
	require.NoError(t, err)
	require.Equal(t, hex.EncodeToString(sum[:]), first.ETag)
	require.NotEmpty(t, first.Version)
	_, err = s.Put(ctx, "data", "a/summed", body, true)
	require.NoError(t, err)
	parts, err := s.PutParts(ctx, "data", "a/parts", bytes.NewReader(body), int64(len(body)), 5<<20, true)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(parts.ETag, "-2"), parts.ETag)

	client, err := s.Client()
	require.NoError(t, err)
	for key, checksum := range map[string]bool{"a/plain": false, "a/summed": true, "a/parts": true} {
		info, err := client.StatObject(ctx, "data", key, minio.StatObjectOptions{Checksum: true})
		require.NoError(t, err)
		require.Equal(t, int64(len(body)), info.Size)
		require.Equal(t, checksum, info.ChecksumCRC64NVME != "", key)
	}

	second, err := s.Put(ctx, "data", "a/plain", []byte("new"), false)
	require.NoError(t, err)
	require.NotEqual(t, first.Version, second.Version)
	got, err := s.Get(ctx, "data", "a/plain")
	require.NoError(t, err)
	require.Equal(t, "new", string(got))
	require.NoError(t, s.Remove(ctx, "data", "a/plain"))
	_, err = s.Get(ctx, "data", "a/plain")
	require.ErrorContains(t, err, "does not exist")
}

func TestServerEndsWithItsFolder(t *testing.T) {
	s := serve(t, Config{})
	require.DirExists(t, s.cfg.Dir)
	require.NoError(t, s.Stop())
	require.NoDirExists(t, s.cfg.Dir)
	_, err := net.Dial("tcp", strings.TrimPrefix(s.Endpoint, "http://"))
	require.ErrorContains(t, err, "connection refused")
}

func TestServerThatCannotListen(t *testing.T) {
	s := serve(t, Config{})
	_, err := Start(t.Context(), Config{Address: strings.TrimPrefix(s.Endpoint, "http://")})
	require.ErrorContains(t, err, "start S3 server: ")
}
