package store

import (
	"crypto/md5"
	"crypto/sha1"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"regexp"
	"strconv"

	"github.com/minio/minio-go/v7"
)

// ErrChecksum: the received content differs from the source's.
var ErrChecksum = errors.New("checksum does not match")

// Sums are a source's checksums of an object's whole content, beside its ETag.
type Sums struct {
	// CRC64NVME and the others are in base64, as in S3; empty if the source does not provide them.
	CRC64NVME, CRC32C, CRC32, SHA256, SHA1 string
	// MD5 is in hex.
	MD5 string
	// GitSHA1 is git's object ID of a file of GitSize bytes, in hex.
	GitSHA1 string
	GitSize int64
	// Opaque: the ETag is not a hash of the content, as for encrypted objects and for
	// sources that are not S3.
	Opaque bool
	// PartSize is the size of the first part of a multipart upload in bytes; 0 if
	// unknown.
	PartSize int64
}

// Kinds of checks, as the manifest records them.
const (
	CheckCRC64     = "crc64nvme"
	checkCRC32C    = "crc32c"
	checkCRC32     = "crc32"
	CheckSHA256    = "sha256"
	checkSHA1      = "sha1"
	CheckMD5       = "md5"
	checkGit       = "git-sha1"
	CheckComposite = "composite-etag"
	CheckSize      = "size"
)

// Check is how the content of one object is verified.
type Check struct {
	Kind string
	// Want is the expected hash of the content: base64 for S3 checksums, hex for MD5, the
	// ETag for a composite one.
	Want string
	// parts and partSize belong to composite ETags.
	parts    int
	partSize int64
	// size is the size that git hashes before the content.
	size int64
	// Declared: the source declares that Want is a hash of the content. An ETag may only look like one.
	Declared bool
	// ETagMismatch: the ETag looks like a hash of the content and does not match it, so only the size was checked.
	ETagMismatch bool
}

var (
	simpleETag    = regexp.MustCompile(`^[0-9a-f]{32}$`)
	compositeETag = regexp.MustCompile(`^[0-9a-f]{32}-([0-9]{1,5})$`)
)

// ChooseCheck picks the best check that the source allows: a checksum of the whole
// object, preferably one that can be combined from ranges; else the MD5 in a simple ETag;
// else the composite ETag; else only the size.
func ChooseCheck(sums Sums, etag string) Check {
	for _, c := range []Check{
		{Kind: CheckCRC64, Want: sums.CRC64NVME},
		{Kind: checkCRC32C, Want: sums.CRC32C},
		{Kind: checkCRC32, Want: sums.CRC32},
		{Kind: CheckSHA256, Want: sums.SHA256},
		{Kind: checkSHA1, Want: sums.SHA1},
		{Kind: CheckMD5, Want: sums.MD5, Declared: true},
		{Kind: checkGit, Want: sums.GitSHA1, size: sums.GitSize},
	} {
		if c.Want != "" {
			return c
		}
	}
	if !sums.Opaque && simpleETag.MatchString(etag) {
		return Check{Kind: CheckMD5, Want: etag}
	}
	if m := compositeETag.FindStringSubmatch(etag); m != nil && !sums.Opaque {
		if parts, err := strconv.Atoi(m[1]); err == nil && parts > 0 {
			return Check{Kind: CheckComposite, Want: etag, parts: parts, partSize: sums.PartSize}
		}
	}
	return Check{Kind: CheckSize}
}

// types maps checks to S3's checksum types.
var types = map[string]minio.ChecksumType{
	CheckCRC64:  minio.ChecksumCRC64NVME,
	checkCRC32C: minio.ChecksumCRC32C,
	checkCRC32:  minio.ChecksumCRC32,
	CheckSHA256: minio.ChecksumSHA256,
	checkSHA1:   minio.ChecksumSHA1,
}

// Combines reports whether the checksum of a whole can be computed from those of its
// ranges.
func (c Check) Combines() bool { return types[c.Kind].CanMergeCRC() }

// Streams reports whether the check can be computed while bytes arrive in order.
func (c Check) Streams() bool { return c.Kind != CheckComposite && c.Kind != CheckSize }

// Hasher returns the hash of a stream for this check; nil if it has none.
func (c Check) Hasher() hash.Hash {
	switch {
	case c.Kind == CheckMD5:
		return md5.New()
	case c.Kind == checkGit:
		h := sha1.New()
		_, _ = fmt.Fprintf(h, "blob %d\x00", c.size) // hashes do not fail
		return h
	case c.Streams():
		return types[c.Kind].Hasher()
	}
	return nil
}

// Verify compares the sum from a Hasher of this check.
func (c Check) Verify(sum []byte) error {
	got := Encode(sum)
	if c.Kind == CheckMD5 || c.Kind == checkGit {
		got = hex.EncodeToString(sum)
	}
	if got != c.Want {
		return fmt.Errorf("%w: %s is %s, and the source says %s", ErrChecksum, c.Kind, got, c.Want)
	}
	return nil
}

// Encode encodes a checksum as S3 does.
func Encode(sum []byte) string { return base64.StdEncoding.EncodeToString(sum) }

// NewCRC64 returns the hash that S3 calls CRC64NVME.
func NewCRC64() hash.Hash64 {
	return minio.ChecksumCRC64NVME.Hasher().(hash.Hash64)
}
