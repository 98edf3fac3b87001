package s3store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/web"
)

// AddressStyle is where the bucket's name goes in a request.
type AddressStyle string

// Styles: as the endpoint suggests, in the path, or in the host's name.
const (
	AddressAuto    AddressStyle = "auto"
	AddressPath    AddressStyle = "path"
	AddressVirtual AddressStyle = "virtual"
)

// Config describes how to reach an S3 server.
type Config struct {
	// Endpoint is http[s]://host[:port]; empty for AWS.
	Endpoint string
	// Region, if empty, is read from the environment; without one there, Amazon is asked for it, and
	// other servers get us-east-1.
	Region    string
	Style     AddressStyle
	Anonymous bool
	// CredentialsDir is a directory with files such as awsAccessKeyID.
	CredentialsDir string
	// CAFile holds certificates to trust in addition to the system's.
	CAFile string
	// Version is the version of the only object to read.
	Version string
	// ReadBuffer bounds what the kernel buffers for each connection, in bytes; 0 leaves
	// it to the kernel.
	ReadBuffer int
	// Attempts and Stall are as in fetch.Config; they apply to listing and to uploads.
	Attempts int
	Stall    time.Duration
	// AnswerTimeout is how long beyond Stall a server may take to answer after the last byte
	// of an upload; 0 means defaultAnswerTimeout.
	AnswerTimeout time.Duration
}

// defaultAnswerTimeout is longer than servers were observed to need for objects that are not large.
const defaultAnswerTimeout = time.Minute

// Bucket is a Store of one bucket.
type Bucket struct {
	client *client
	source store.Source
	config Config
	// opaque: ETags are not MD5s, and only listings of the first version are supported.
	opaque bool
}

// pachydermRegion is the region for which Pachyderm's gateway wants requests to be signed.
const pachydermRegion = "PACHYDERM"

// New returns the Store of an s3:// or pachyderm:// source. It sends no request yet.
func New(source store.Source, config Config) (store.Store, error) {
	core, err := config.connect(source)
	if err != nil {
		return nil, store.Usage(err)
	}
	if config.Version != "" && !source.Single() {
		return nil, store.Usage(errors.New("--version-id requires one object; give a source that neither ends in a slash nor has wildcards"))
	}
	if config.AnswerTimeout == 0 {
		config.AnswerTimeout = defaultAnswerTimeout
	}
	return &Bucket{client: &client{core: core, config: config, source: source}, source: source, config: config, opaque: source.Kind == store.KindPachyderm}, nil
}

// connect creates the client.
func (c Config) connect(source store.Source) (*connection, error) {
	if source.Kind == store.KindPachyderm {
		if c.Endpoint == "" {
			return nil, errors.New("--endpoint is empty; give the address of Pachyderm's S3 gateway, such as http://pachd:30600")
		}
		c.Region, c.Style = pachydermRegion, AddressPath
	}
	host, secure, err := parseEndpoint(c.Endpoint)
	if err != nil {
		return nil, err
	}
	if c.Region == "" {
		c.Region = environment("AWS_REGION", "AWS_DEFAULT_REGION")
	}
	if c.Region == "" {
		c.Region = defaultRegion(host)
	}
	transport, err := web.NewTransport(secure, c.CAFile, c.ReadBuffer)
	if err != nil {
		return nil, err
	}
	lookup := minio.BucketLookupAuto
	switch c.Style {
	case AddressPath:
		lookup = minio.BucketLookupPath
	case AddressVirtual:
		lookup = minio.BucketLookupDNS
	case AddressAuto, "":
	default:
		return nil, fmt.Errorf("--address-style %q is not known; it is %s, %s or %s", c.Style, AddressAuto, AddressPath, AddressVirtual)
	}
	creds := c.credentials(source.Kind)
	core, err := minio.NewCore(host, &minio.Options{
		Creds: creds, Secure: secure, Transport: paged{transport}, Region: c.Region,
		BucketLookup: lookup, MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("--endpoint %q: %w", c.Endpoint, err)
	}
	return &connection{Core: *core, creds: creds, transport: transport, bucket: source.Bucket}, nil
}

// defaultRegion returns the region to sign for at a host if none is configured. Servers other than
// Amazon's accept one for all. For Amazon's it is empty: the client derives it from the host's name, or
// asks where the bucket is.
func defaultRegion(host string) string {
	if u := (url.URL{Host: host}); s3utils.IsAmazonEndpoint(u) || s3utils.IsAmazonOutpostsEndpoint(u) {
		return ""
	}
	return "us-east-1"
}

// again calls try until it succeeds or fails permanently, at most Attempts times.
func (b *Bucket) again(ctx context.Context, try func(context.Context) error) error {
	return store.Retry(ctx, b.config.Attempts, try)
}

// List implements store.Store.
func (b *Bucket) List(ctx context.Context, each func(store.Object) error) error {
	if b.source.Single() {
		o, err := b.one(ctx, b.source.Key)
		if store.Classify(err) == store.Gone && err != nil {
			err = fmt.Errorf("there is no bucket or object of this name; to fetch everything below a prefix, end it in a slash: %w", err)
		}
		if err != nil {
			return err
		}
		return each(o)
	}
	return b.listAll(ctx, each)
}

// one stats the object that a source names, with retries.
func (b *Bucket) one(ctx context.Context, key string) (o store.Object, err error) {
	err = b.again(ctx, func(ctx context.Context) (err error) {
		ctx, _, stop := store.WatchStall(ctx, b.config.Stall)
		defer stop()
		o, _, err = b.Stat(ctx, key, b.config.Version)
		return store.Cause(ctx, err)
	})
	return o, err
}

// Stat implements store.Store.
func (b *Bucket) Stat(ctx context.Context, key, version string) (store.Object, store.Sums, error) {
	info, err := b.stat(ctx, key, minio.StatObjectOptions{VersionID: version, Checksum: true})
	if err != nil {
		return store.Object{}, store.Sums{}, withAdvice(err)
	}
	sums := b.sumsOf(info.Headers)
	if c := store.ChooseCheck(sums, info.ETag); c.Kind == store.CheckComposite {
		// If the size is unknown, it can be guessed.
		sums.PartSize, _ = b.partSize(ctx, store.Object{Key: key, Size: info.Size, ETag: info.ETag, Version: version}, 1)
	}
	return store.Object{Key: key, Size: info.Size, ETag: info.ETag, Version: version, Modified: info.LastModified}, sums, nil
}

// sumsOf returns the checksums in a response's headers. Those of a multipart upload are usable only if
// they are of the full object.
func (b *Bucket) sumsOf(header http.Header) store.Sums {
	encryption := header.Get("X-Amz-Server-Side-Encryption")
	s := store.Sums{Opaque: b.opaque || encryption != "" && encryption != "AES256" ||
		header.Get("X-Amz-Server-Side-Encryption-Customer-Algorithm") != ""}
	composite := header.Get("X-Amz-Checksum-Type") == minio.ChecksumCompositeMode.String()
	full := func(kind minio.ChecksumType) string {
		sum := header.Get(kind.Key())
		if composite || strings.Contains(sum, "-") {
			return ""
		}
		return sum
	}
	s.CRC64NVME, s.CRC32C, s.CRC32 = full(minio.ChecksumCRC64NVME), full(minio.ChecksumCRC32C), full(minio.ChecksumCRC32)
	s.SHA256, s.SHA1 = full(minio.ChecksumSHA256), full(minio.ChecksumSHA1)
	return s
}

// Open implements store.Store.
func (b *Bucket) Open(ctx context.Context, object store.Object, part store.Span) (store.Stream, error) {
	header := http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}}
	whole := part.Length == object.Size
	if !whole {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", part.Offset, part.End()-1))
	}
	if object.ETag != "" && !strings.HasPrefix(object.ETag, "W/") { // a weak one matches nothing
		header.Set("If-Match", `"`+object.ETag+`"`)
	}
	a, err := b.get(ctx, object, part, header)
	if err != nil {
		return store.Stream{}, withAdvice(err)
	}
	s := store.Stream{Body: a.body, Size: a.size()}
	if s.Size < 0 { // only the end of the body shows its length
		s.Size = object.Size
	}
	if !whole {
		s.Size, err = web.SizeOf(a.header, part)
	} else {
		s.Sums = b.sumsOf(a.header)
	}
	if err == nil && a.etag() != object.ETag && object.ETag != "" {
		err = store.ErrChanged
	}
	if err != nil {
		_ = a.body.Close()
		return store.Stream{}, err
	}
	return s, nil
}

// acceptEncoding is the header that asks a server not to decompress content that is stored compressed.
const acceptEncoding = "Accept-Encoding"

// stat stats an object. A server that would decompress it does not report its length.
func (b *Bucket) stat(ctx context.Context, key string, options minio.StatObjectOptions) (info minio.ObjectInfo, err error) {
	try := func() error {
		return b.client.call(ctx, func(core *connection) (err error) {
			info, err = core.StatObject(ctx, b.source.Bucket, key, options)
			return err
		})
	}
	if err = try(); err == nil && info.Size < 0 {
		options.Set(acceptEncoding, "gzip")
		err = try()
	}
	return info, err
}

// get begins to read an object as it is stored. Some servers decompress content that was stored
// compressed unless they are asked not to; it then has another length than they listed, and no ranges.
// Others would compress anything if they were asked, so that is the second try.
func (b *Bucket) get(ctx context.Context, object store.Object, part store.Span, header http.Header) (answer, error) {
	try := func() (a answer, err error) {
		err = b.client.call(ctx, func(c *connection) (err error) {
			a, err = c.get(ctx, object.Key, object.Version, header)
			return err
		})
		return a, err
	}
	first, err := try()
	if err != nil || first.etag() != object.ETag && object.ETag != "" {
		return first, err
	}
	whole := part.Length == object.Size
	if whole && first.size() == object.Size || !whole && first.header.Get("Content-Range") != "" {
		return first, nil
	}
	header.Set(acceptEncoding, "gzip")
	second, err := try()
	if err == nil && (second.size() == object.Size || second.header.Get("Content-Range") != "") {
		_ = first.body.Close()
		return second, nil
	}
	if err == nil {
		_ = second.body.Close()
	}
	return first, nil
}

// withAdvice adds advice to errors that users meet.
func withAdvice(err error) error {
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
