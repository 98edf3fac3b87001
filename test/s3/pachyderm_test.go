//go:build s3

package s3

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"
)

func TestPachyderm(t *testing.T) {
	s := serve(t, Config{})
	ctx := t.Context()
	p := s.Pachyderm()
	t.Cleanup(p.Close)
	p.PageSize = 2
	first, err := p.Commit(ctx, "default", "images", "master", map[string][]byte{"old": []byte("old")})
	require.NoError(t, err)
	files := map[string][]byte{}
	for i := range 5 {
		files[fmt.Sprintf("dir/file %d", i)] = fmt.Appendf(nil, "content %d", i)
	}
	second, err := p.Commit(ctx, "default", "images", "master", files)
	require.NoError(t, err)
	_, err = p.Commit(ctx, "other", "images", "dev", map[string][]byte{"theirs": nil})
	require.NoError(t, err)

	client := connect(t, p.Endpoint, p.Token, p.Token)
	for bucket, want := range map[string][]string{
		"images": {"dir/file 0", "dir/file 1", "dir/file 2", "dir/file 3", "dir/file 4"}, first + ".master.images": {"old"}, first + ".images": {"old"},
		"dev.images.other": {"theirs"}, first + ".master.images.default": {"old"},
	} {
		var keys []string
		for o := range client.ListObjects(ctx, bucket, minio.ListObjectsOptions{Recursive: true, UseV1: true}) {
			require.NoError(t, o.Err)
			require.Len(t, o.ETag, 64)
			keys = append(keys, o.Key)
		}
		require.Equal(t, want, keys, bucket)
	}
	region, err := client.GetBucketLocation(ctx, "master.images")
	require.NoError(t, err)
	require.Equal(t, "PACHYDERM", region)

	got, err := read(ctx, client, "master.images", "dir/file 3")
	require.NoError(t, err)
	require.Equal(t, "content 3", string(got))
	info, err := client.StatObject(ctx, "master.images", "dir/file 3", minio.StatObjectOptions{Checksum: true})
	require.NoError(t, err)
	require.Equal(t, second, info.VersionID)
	require.Empty(t, info.ChecksumCRC64NVME)

	_, err = read(ctx, connect(t, p.Endpoint, "token", "token"), "master.images", "dir/file 3")
	require.ErrorContains(t, err, "SignatureDoesNotMatch")
	_, err = read(ctx, connect(t, p.Endpoint, p.Token, "token"), "master.images", "dir/file 3")
	require.ErrorContains(t, err, "SignatureDoesNotMatch")
	_, err = read(ctx, client, "dev.images", "dir/file 3")
	require.ErrorContains(t, err, "NoSuchBucket")
	_, err = client.PutObject(ctx, "master.images", "new", nil, 0, minio.PutObjectOptions{})
	require.ErrorContains(t, err, "NotImplemented")

	p.Patience = 0
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err = read(ctx, client, "master.images", "dir/file 3")
	require.ErrorContains(t, err, "Connection closed", "it is cut off")
}
