package fetch

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"regexp"
	"strconv"

	"github.com/minio/minio-go/v7"
)

// errChecksum: the content that came is not the one that the source has.
var errChecksum = errors.New("checksum does not match")

// Sums are what a source tells of an object's whole content, beside its ETag.
type Sums struct {
	// CRC64NVME and the others are in base64, as S3 has them; empty if not given.
	CRC64NVME, CRC32C, CRC32, SHA256, SHA1 string
	// Opaque is set where the ETag is no hash of the content: for encrypted
	// objects, and for sources that are not S3.
	Opaque bool
	// PartSize is that of the first part of a multipart upload in bytes; 0 if
	// nobody told.
	PartSize int64
}

// Names of checks, as the manifest has them.
const (
	checkCRC64     = "crc64nvme"
	checkCRC32C    = "crc32c"
	checkCRC32     = "crc32"
	checkSHA256    = "sha256"
	checkSHA1      = "sha1"
	checkMD5       = "md5"
	checkComposite = "composite-etag"
	checkSize      = "size"
)

// check is how the content of one object is verified.
type check struct {
	kind string
	// want is what the content must hash to: base64 for what S3 calls checksums,
	// hex for MD5, the ETag for a composite one.
	want string
	// parts and partSize belong to composite ETags.
	parts    int
	partSize int64
}

var (
	simpleETag    = regexp.MustCompile(`^[0-9a-f]{32}$`)
	compositeETag = regexp.MustCompile(`^[0-9a-f]{32}-([0-9]{1,5})$`)
)

// chooseCheck picks the best check that the source allows: a checksum of the
// whole object, those first that can be put together from ranges; else the MD5
// in a simple ETag; else the composite ETag; else nothing but the size.
func chooseCheck(sums Sums, etag string) check {
	for _, c := range []check{
		{kind: checkCRC64, want: sums.CRC64NVME},
		{kind: checkCRC32C, want: sums.CRC32C},
		{kind: checkCRC32, want: sums.CRC32},
		{kind: checkSHA256, want: sums.SHA256},
		{kind: checkSHA1, want: sums.SHA1},
	} {
		if c.want != "" {
			return c
		}
	}
	if !sums.Opaque && simpleETag.MatchString(etag) {
		return check{kind: checkMD5, want: etag}
	}
	if m := compositeETag.FindStringSubmatch(etag); m != nil && !sums.Opaque {
		if parts, err := strconv.Atoi(m[1]); err == nil && parts > 0 {
			return check{kind: checkComposite, want: etag, parts: parts, partSize: sums.PartSize}
		}
	}
	return check{kind: checkSize}
}

// types are S3's checksums among the checks.
var types = map[string]minio.ChecksumType{
	checkCRC64:  minio.ChecksumCRC64NVME,
	checkCRC32C: minio.ChecksumCRC32C,
	checkCRC32:  minio.ChecksumCRC32,
	checkSHA256: minio.ChecksumSHA256,
	checkSHA1:   minio.ChecksumSHA1,
}

// combines tells whether the checksum of a whole can be had from those of its
// ranges.
func (c check) combines() bool { return types[c.kind].CanMergeCRC() }

// streams tells whether the check can be made while the bytes come in order.
func (c check) streams() bool { return c.kind != checkComposite && c.kind != checkSize }

// hasher makes what hashes a stream for this check; nil where none does.
func (c check) hasher() hash.Hash {
	switch {
	case c.kind == checkMD5:
		return md5.New()
	case c.streams():
		return types[c.kind].Hasher()
	}
	return nil
}

// verify compares what a hasher of this check has seen.
func (c check) verify(sum []byte) error {
	got := encode(sum)
	if c.kind == checkMD5 {
		got = hex.EncodeToString(sum)
	}
	if got != c.want {
		return fmt.Errorf("%w: %s is %s, and the source says %s", errChecksum, c.kind, got, c.want)
	}
	return nil
}

// sumOf is the checksum of one span.
type sumOf struct {
	span
	sum []byte
}

// combine verifies a whole from the checksums of its spans, which must be in
// order and without gaps.
func (c check) combine(sums []sumOf) error {
	t := types[c.kind]
	if len(sums) == 0 {
		return c.verify(t.Hasher().Sum(nil))
	}
	parts := make([]minio.ObjectPart, len(sums))
	for i, s := range sums {
		part := minio.ObjectPart{PartNumber: i + 1, Size: s.Length}
		encoded := encode(s.sum)
		switch c.kind {
		case checkCRC64:
			part.ChecksumCRC64NVME = encoded
		case checkCRC32C:
			part.ChecksumCRC32C = encoded
		case checkCRC32:
			part.ChecksumCRC32 = encoded
		}
		parts[i] = part
	}
	whole, err := t.FullObjectChecksum(parts)
	if err != nil {
		return fmt.Errorf("combine %s of %d ranges: %w", c.kind, len(sums), err)
	}
	return c.verify(whole.Raw())
}

// encode writes a checksum as S3 does.
func encode(sum []byte) string { return base64.StdEncoding.EncodeToString(sum) }
