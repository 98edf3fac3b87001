package s3store

import (
	"context"
	"encoding/xml"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// connection is minio's client of a server and, for objects, a faster one that takes a quarter of its
// processor time to prepare a request and to read the response's headers. For small objects that is
// much of the cost.
type connection struct {
	minio.Core
	creds     *credentials.Credentials
	transport http.RoundTripper
	bucket    string

	mu  sync.Mutex
	at  *location
	key signingKey
}

// location is where the objects of a bucket are.
type location struct {
	// bucket is the URL to which an object's key is appended.
	bucket url.URL
	// region is the region that requests are signed for; empty if minio's client signs them in another
	// way than sign does.
	region string
}

// answer is a response with an object, or with a part of it.
type answer struct {
	body   io.ReadCloser
	header http.Header
}

// size returns the length of the body; negative if only the end of the body shows it.
func (a answer) size() int64 {
	n, err := strconv.ParseInt(a.header.Get("Content-Length"), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// etag returns the ETag without its quotes, as in listings.
func (a answer) etag() string {
	return strings.TrimSuffix(strings.TrimPrefix(a.header.Get("Etag"), `"`), `"`)
}

// get begins to read an object. header has additional request headers.
func (c *connection) get(ctx context.Context, key, version string, header http.Header) (answer, error) {
	// Minio's client renews expired credentials once for all waiting requests, and stops when they do.
	if c.creds.IsExpired() || s3utils.IsS3ExpressBucket(c.bucket) { // S3 Express uses sessions
		return c.getByClient(ctx, key, version, header)
	}
	value, err := c.GetCreds()
	if err != nil {
		return answer{}, err
	}
	at := &location{}
	if value.SignerType.IsV4() && value.AccessKeyID != "" && value.SecretAccessKey != "" {
		if at, err = c.locate(ctx); err != nil {
			return answer{}, err
		}
	}
	if at.region == "" {
		return c.getByClient(ctx, key, version, header)
	}
	request := at.request(ctx, key, version, header)
	c.sign(request, value, at.region, time.Now())
	response, err := c.transport.RoundTrip(request) //nolint:bodyclose // the reader of the answer closes it
	if err != nil {
		return answer{}, &url.Error{Op: "Get", URL: request.URL.String(), Err: err}
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusPartialContent {
		return answer{}, errorOf(response, c.bucket, key)
	}
	return answer{response.Body, response.Header}, nil
}

// getByClient is get through minio's client.
func (c *connection) getByClient(ctx context.Context, key, version string, header http.Header) (answer, error) {
	options := minio.GetObjectOptions{VersionID: version}
	for name := range header {
		options.Set(name, header.Get(name))
	}
	body, _, got, err := c.GetObject(ctx, c.bucket, key, options)
	return answer{body, got}, err
}

// locate returns where the bucket's objects are. Minio's client knows the region, and whether the
// bucket's name belongs in the host name or in the path: a URL that it has signed has both.
func (c *connection) locate(ctx context.Context) (*location, error) {
	c.mu.Lock()
	at := c.at
	c.mu.Unlock()
	if at != nil {
		return at, nil
	}
	const key = "key"
	signed, err := c.PresignedGetObject(ctx, c.bucket, key, time.Minute, nil)
	if err != nil {
		return nil, err
	}
	at = &location{bucket: url.URL{Scheme: signed.Scheme, Host: signed.Host, Path: strings.TrimSuffix(signed.Path, key)}}
	// …/20260102/eu-central-1/s3/aws4_request
	scope := strings.Split(signed.Query().Get("X-Amz-Credential"), "/")
	if n := len(scope); n >= 5 && scope[n-2] == service {
		at.region = scope[n-3]
	}
	c.mu.Lock()
	c.at = at
	c.mu.Unlock()
	return at, nil
}

// request returns the request for an object.
func (l *location) request(ctx context.Context, key, version string, header http.Header) *http.Request {
	at := l.bucket
	at.Path += key
	at.RawPath = s3utils.EncodePath(at.Path)
	if version != "" {
		at.RawQuery = "versionId=" + strings.ReplaceAll(url.QueryEscape(version), "+", "%20")
	}
	request := &http.Request{Method: http.MethodGet, URL: &at, Host: at.Host, Header: header.Clone(), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	return request.WithContext(ctx)
}

// maxErrorBody is how much of an error response is read, in bytes.
const maxErrorBody = 1 << 20

// maxErrorText is how much is shown of an error that is not XML, in bytes.
const maxErrorText = 1 << 10

// errorOf returns the error of an unsuccessful response, of the type that minio's client returns.
func errorOf(response *http.Response, bucket, key string) error {
	defer func() { _ = response.Body.Close() }() // it was only read
	e := minio.ErrorResponse{}
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody)) // if the text is incomplete, the status still shows what is wrong
	if xml.Unmarshal(text, &e) != nil || e.Code == "" {
		e = minio.ErrorResponse{Code: response.Status, Message: response.Status}
		switch response.StatusCode {
		case http.StatusNotFound:
			e.Code = minio.NoSuchKey
		case http.StatusForbidden:
			e.Code = minio.AccessDenied
		case http.StatusPreconditionFailed:
			e.Code = minio.PreconditionFailed
		default:
			if said := strings.TrimSpace(strings.ToValidUTF8(string(text[:min(len(text), maxErrorText)]), "")); said != "" {
				e.Message += ": " + said
			}
		}
	}
	e.StatusCode, e.BucketName, e.Key = response.StatusCode, bucket, key
	if e.Region = strings.TrimSpace(e.Region); e.Region == "" {
		e.Region = response.Header.Get("X-Amz-Bucket-Region")
	}
	return e
}
