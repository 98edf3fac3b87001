package s3

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// An Object is the result of an upload.
type Object struct {
	// ETag has no quotes: the MD5 in hex or, for a multipart upload, MD5-N.
	ETag string
	// Version is empty in a bucket without versioning.
	Version string
}

// Client returns a client with the rights of the server's user. It is always the same one, because each client
// keeps connections of its own.
func (s *Server) Client() (*minio.Client, error) {
	s.once.Do(func() { s.client, s.clientErr = s.newClient() })
	return s.client, s.clientErr
}

func (s *Server) newClient() (*minio.Client, error) {
	client, err := minio.New(strings.TrimPrefix(s.Endpoint, "http://"), &minio.Options{
		Creds:           credentials.NewStaticV4(s.Access, s.Secret, ""),
		Region:          Region,
		Transport:       s.transport(),
		BucketLookup:    minio.BucketLookupPath,
		TrailingHeaders: true, // needed for CRC64NVME
		MaxRetries:      1,    // the server is on this machine
	})
	if err != nil {
		return nil, fmt.Errorf("make S3 client: %w", err)
	}
	return client, nil
}

// MakeBucket creates an empty bucket; a versioned one keeps overwritten versions.
func (s *Server) MakeBucket(ctx context.Context, bucket string, versioned bool) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	if err := client.MakeBucket(ctx, bucket, minio.MakeBucketOptions{Region: Region}); err != nil {
		return fmt.Errorf("make bucket %s: %w", bucket, err)
	}
	if !versioned {
		return nil
	}
	if err := client.EnableVersioning(ctx, bucket); err != nil {
		return fmt.Errorf("keep versions in bucket %s: %w", bucket, err)
	}
	return nil
}

// Put uploads an object in one request. With checksummed, the server receives, verifies and stores its CRC64NVME.
// Otherwise it has only the ETag, which is the MD5, like servers that predate checksums.
func (s *Server) Put(ctx context.Context, bucket, key string, body []byte, checksummed bool) (Object, error) {
	client, err := s.Client()
	if err != nil {
		return Object{}, err
	}
	o, err := upload(ctx, client, bucket, key, bytes.NewReader(body), int64(len(body)), options(checksummed))
	if err != nil || checksummed {
		return o, err
	}
	return o, s.forgetChecksum(bucket, key)
}

// PutParts uploads an object in parts of partSize bytes, at least 5 MiB. Its ETag is not a hash of its content.
// With checksummed it has a CRC64NVME of the whole.
func (s *Server) PutParts(ctx context.Context, bucket, key string, body io.Reader, size int64, partSize uint64, checksummed bool) (Object, error) {
	client, err := s.Client()
	if err != nil {
		return Object{}, err
	}
	how := options(checksummed)
	how.DisableMultipart, how.PartSize = false, partSize
	o, err := upload(ctx, client, bucket, key, body, size, how)
	if err != nil || checksummed {
		return o, err
	}
	return o, s.forgetChecksum(bucket, key)
}

// forgetChecksum deletes the checksum that the server computes if a client sends none.
func (s *Server) forgetChecksum(bucket, key string) error {
	if err := os.Remove(filepath.Join(s.cfg.Dir, "meta", bucket, key, "meta", "checksums")); err != nil {
		return fmt.Errorf("forget checksum of object %q in bucket %s: %w", key, bucket, err)
	}
	return nil
}

// Upload is Put with size bytes of body, for content that is too large to hold in memory.
func (s *Server) Upload(ctx context.Context, bucket, key string, body io.Reader, size int64, checksummed bool) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	how := options(true) // the server computes the MD5 itself
	if _, err := upload(ctx, client, bucket, key, body, size, how); err != nil || checksummed {
		return err
	}
	return s.forgetChecksum(bucket, key)
}

func options(checksummed bool) minio.PutObjectOptions {
	how := minio.PutObjectOptions{DisableMultipart: true, SendContentMd5: !checksummed, DisableContentSha256: true}
	if checksummed {
		how.Checksum = minio.ChecksumCRC64NVME
	}
	return how
}

func upload(ctx context.Context, client *minio.Client, bucket, key string, body io.Reader, size int64, how minio.PutObjectOptions) (Object, error) {
	info, err := client.PutObject(ctx, bucket, key, body, size, how)
	if err != nil {
		return Object{}, fmt.Errorf("put object %q into bucket %s: %w", key, bucket, err)
	}
	return Object{ETag: info.ETag, Version: info.VersionID}, nil
}

// Remove removes an object, or the newest version of it in a versioned bucket.
func (s *Server) Remove(ctx context.Context, bucket, key string) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	if err := client.RemoveObject(ctx, bucket, key, minio.RemoveObjectOptions{}); err != nil {
		return fmt.Errorf("remove object %q from bucket %s: %w", key, bucket, err)
	}
	return nil
}

// Get returns the content of an object.
func (s *Server) Get(ctx context.Context, bucket, key string) ([]byte, error) {
	client, err := s.Client()
	if err != nil {
		return nil, err
	}
	object, err := client.GetObject(ctx, bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return nil, fmt.Errorf("get object %q of bucket %s: %w", key, bucket, err)
	}
	defer object.Close()
	content, err := io.ReadAll(object)
	if err != nil {
		return nil, fmt.Errorf("get object %q of bucket %s: %w", key, bucket, err)
	}
	return content, nil
}
