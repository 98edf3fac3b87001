package fetch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// AddressStyle says where the bucket's name goes.
type AddressStyle string

// Styles: in the path, in the host's name, or as the endpoint suggests.
const (
	AddressAuto    AddressStyle = "auto"
	AddressPath    AddressStyle = "path"
	AddressVirtual AddressStyle = "virtual"
)

// S3 says how to reach an S3 server.
type S3 struct {
	// Endpoint is http[s]://host[:port]; empty for AWS.
	Endpoint string
	// Region is the environment's if it is empty, else found out at Amazon, and
	// us-east-1 elsewhere.
	Region    string
	Style     AddressStyle
	Anonymous bool
	// CredentialsDir is a directory of files awsAccessKeyID and so on.
	CredentialsDir string
	// CAFile holds certificates that are trusted beside the system's.
	CAFile string
	// Version is that of the one object that is asked for.
	Version string
	// ReadBuffer bounds what waits in the kernel for each connection, in bytes; 0
	// leaves it to the kernel.
	ReadBuffer int
	// Attempts and Stall are as in Config; they hold for listing and for uploads.
	Attempts int
	Stall    time.Duration
	// patience is how long beyond Stall a server may take to answer an upload whose
	// last byte was sent; 0 is answerPatience.
	patience time.Duration
}

// answerPatience is more than servers were seen to need for what is not large.
const answerPatience = time.Minute

// bucket is a Store of one bucket.
type bucket struct {
	core   minio.Core
	source Source
	config S3
	// opaque: ETags are no MD5, and listings are of the first version.
	opaque bool
}

// pachydermRegion is what its gateway wants requests to be signed for.
const pachydermRegion = "PACHYDERM"

// NewS3 makes the Store of an s3:// or pachyderm:// source. It does not ask the
// server for anything yet.
func NewS3(source Source, config S3) (Store, error) {
	core, err := config.connect(source)
	if err != nil {
		return nil, usage(err)
	}
	if config.Version != "" && !source.single() {
		return nil, usage(errors.New("--version-id is of one object; give a source that neither ends in a slash nor has wildcards"))
	}
	if config.patience == 0 {
		config.patience = answerPatience
	}
	return &bucket{core: core, source: source, config: config, opaque: source.Kind == kindPachyderm}, nil
}

// connect makes the client.
func (c S3) connect(source Source) (minio.Core, error) {
	if source.Kind == kindPachyderm {
		if c.Endpoint == "" {
			return minio.Core{}, errors.New("--endpoint is empty; give the address of Pachyderm's S3 gateway, such as http://pachd:30600")
		}
		c.Region, c.Style = pachydermRegion, AddressPath
	}
	host, secure, err := parseEndpoint(c.Endpoint)
	if err != nil {
		return minio.Core{}, err
	}
	if c.Region == "" {
		c.Region = environment("AWS_REGION", "AWS_DEFAULT_REGION")
	}
	if c.Region == "" {
		c.Region = defaultRegion(host)
	}
	transport, err := newTransport(secure, c.CAFile, c.ReadBuffer)
	if err != nil {
		return minio.Core{}, err
	}
	lookup := minio.BucketLookupAuto
	switch c.Style {
	case AddressPath:
		lookup = minio.BucketLookupPath
	case AddressVirtual:
		lookup = minio.BucketLookupDNS
	case AddressAuto, "":
	default:
		return minio.Core{}, fmt.Errorf("--address-style %q is not known; it is %s, %s or %s", c.Style, AddressAuto, AddressPath, AddressVirtual)
	}
	core, err := minio.NewCore(host, &minio.Options{
		Creds: c.credentials(source.Kind), Secure: secure, Transport: transport, Region: c.Region,
		BucketLookup: lookup, MaxRetries: 1,
	})
	if err != nil {
		return minio.Core{}, fmt.Errorf("--endpoint %q: %w", c.Endpoint, err)
	}
	return *core, nil
}

// defaultRegion is what to sign for at a host where nobody said it: others than Amazon
// take one for all. For Amazon's it is empty: the client knows it from the host's name,
// or asks where the bucket is.
func defaultRegion(host string) string {
	if u := (url.URL{Host: host}); s3utils.IsAmazonEndpoint(u) || s3utils.IsAmazonOutpostsEndpoint(u) {
		return ""
	}
	return "us-east-1"
}

// again calls try until it succeeds or fails for good.
func (b *bucket) again(ctx context.Context, try func(context.Context) error) error {
	for n := 1; ; n++ {
		err := try(ctx)
		if err == nil || context.Cause(ctx) != nil || classify(err) != transient || n >= b.config.Attempts {
			return err
		}
		if err := wait(ctx, pause(n, rand.Float64())); err != nil {
			return err
		}
	}
}

func (b *bucket) List(ctx context.Context, each func(Object) error) error {
	if b.source.single() {
		var o Object
		err := b.again(ctx, func(ctx context.Context) (err error) {
			ctx, _, stop := watch(ctx, b.config.Stall)
			defer stop()
			o, _, err = b.Stat(ctx, b.source.Key, b.config.Version)
			return cause(ctx, err)
		})
		if classify(err) == gone && err != nil {
			err = fmt.Errorf("there is no bucket or object of this name; all below a prefix is fetched where it ends in a slash: %w", err)
		}
		if err != nil {
			return err
		}
		return each(o)
	}
	return b.listAll(ctx, each)
}

func (b *bucket) Stat(ctx context.Context, key, version string) (Object, Sums, error) {
	info, err := b.core.StatObject(ctx, b.source.Bucket, key, minio.StatObjectOptions{VersionID: version, Checksum: true})
	if err != nil {
		return Object{}, Sums{}, hint(err)
	}
	sums := b.sumsOf(info)
	if c := chooseCheck(sums, info.ETag); c.kind == checkComposite {
		// Where it is not told, it can be guessed.
		sums.PartSize, _ = b.partSize(ctx, Object{Key: key, Size: info.Size, ETag: info.ETag, Version: version}, 1)
	}
	return Object{Key: key, Size: info.Size, ETag: info.ETag, Version: version, Modified: info.LastModified}, sums, nil
}

// sumsOf are the checksums in an answer's headers. Those of a multipart upload
// are of use only if they are of the full object.
func (b *bucket) sumsOf(info minio.ObjectInfo) Sums {
	encryption := info.Headers.Get("X-Amz-Server-Side-Encryption")
	s := Sums{Opaque: b.opaque || encryption != "" && encryption != "AES256" ||
		info.Headers.Get("X-Amz-Server-Side-Encryption-Customer-Algorithm") != ""}
	full := func(sum string) string {
		if info.ChecksumMode == minio.ChecksumCompositeMode.String() || strings.Contains(sum, "-") {
			return ""
		}
		return sum
	}
	s.CRC64NVME, s.CRC32C, s.CRC32 = full(info.ChecksumCRC64NVME), full(info.ChecksumCRC32C), full(info.ChecksumCRC32)
	s.SHA256, s.SHA1 = full(info.ChecksumSHA256), full(info.ChecksumSHA1)
	return s
}

func (b *bucket) Open(ctx context.Context, object Object, part span) (Stream, error) {
	options := minio.GetObjectOptions{VersionID: object.Version}
	options.Set("x-amz-checksum-mode", "ENABLED")
	whole := part.Length == object.Size
	if !whole {
		if err := options.SetRange(part.Offset, part.end()-1); err != nil {
			return Stream{}, err
		}
	}
	if object.ETag != "" && !strings.HasPrefix(object.ETag, "W/") { // a weak one matches nothing
		if err := options.SetMatchETag(object.ETag); err != nil {
			return Stream{}, err
		}
	}
	body, info, header, err := b.core.GetObject(ctx, b.source.Bucket, object.Key, options)
	if err != nil {
		return Stream{}, hint(err)
	}
	s := Stream{Body: body, Size: info.Size}
	if info.Size < 0 { // an answer without a length shows at its end how long it is
		s.Size = object.Size
	}
	if !whole {
		err = s.checkRange(header, part)
	} else {
		s.Sums = b.sumsOf(info)
	}
	if err == nil && info.ETag != object.ETag && object.ETag != "" {
		err = errChanged
	}
	if err != nil {
		_ = body.Close()
		return Stream{}, err
	}
	return s, nil
}

// checkRange makes sure that an answer holds the range that was asked for, and
// takes the size of the object from it.
func (s *Stream) checkRange(header http.Header, part span) error {
	raw := header.Get("Content-Range")
	want := fmt.Sprintf("bytes %d-%d/", part.Offset, part.end()-1)
	rest, found := strings.CutPrefix(raw, want)
	size, err := strconv.ParseInt(rest, 10, 64)
	if !found || err != nil {
		return fmt.Errorf("ask for %s: the answer's Content-Range is %q", want, raw)
	}
	s.Size = size
	return nil
}

// hint adds what to do to errors that people meet.
func hint(err error) error {
	if err == nil {
		return nil
	}
	var r minio.ErrorResponse
	if !errors.As(err, &r) {
		return err
	}
	advice := ""
	switch r.Code {
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken":
		advice = "check the credentials"
	case "AccessDenied":
		advice = "check the credentials and what they permit"
	case "NoSuchBucket":
		advice = "check the bucket's name and --endpoint"
	case "AuthorizationHeaderMalformed", "PermanentRedirect":
		advice = "check --region and --endpoint"
	case "RequestTimeTooSkewed":
		advice = "set the clock of this machine"
	case "InvalidObjectState":
		advice = "the object is archived; restore it first"
	}
	if advice == "" {
		return err
	}
	return fmt.Errorf("%w (%s: %s)", err, r.Code, advice)
}
