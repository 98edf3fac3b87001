package s3

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
)

// Pachyderm serves the dialect of Pachyderm's S3 gateway, on top of the server:
//
//   - buckets are [[commit.]branch.]repo[.project], of any letters; naming a
//     project requires a branch
//   - the access key and the secret are the token, whatever the region; the
//     location of buckets is PACHYDERM
//   - only the first version of listings exists: a client that requests the
//     second gets the first, with markers. ETags in them have no quotes
//   - ETags are hashes of 64 digits that are not the content's MD5; there are no
//     other checksums. An object's version is its commit
//   - a request is aborted after some minutes
type Pachyderm struct {
	Endpoint string
	// Token is the clients' credential. If it is empty, authentication is off, and requests without a signature are
	// served.
	Token string
	// PageSize is the maximum number of keys per page of a listing; default 1000.
	PageSize int
	// Patience is the maximum duration of a request; default 5 minutes.
	Patience time.Duration

	files  *Server
	server *httptest.Server

	mu      sync.Mutex
	commits map[string]string // "project/repo@branch" to its head commit
	known   map[string]string // commit to its "project/repo@branch"
	buckets []string          // that clients have requested
}

// Pachyderm starts a gateway that stores its files on the server. It runs until Close.
func (s *Server) Pachyderm() *Pachyderm {
	p := &Pachyderm{
		Token: "pach-" + rand.Text(), PageSize: 1000, Patience: 5 * time.Minute,
		files: s, commits: map[string]string{}, known: map[string]string{},
	}
	p.server = httptest.NewServer(p)
	p.Endpoint = p.server.URL
	return p
}

// Close stops the gateway.
func (p *Pachyderm) Close() {
	p.server.CloseClientConnections()
	p.server.Close()
}

// Commit creates a commit with exactly these files, by path, as the head of a branch, and returns its ID.
func (p *Pachyderm) Commit(ctx context.Context, project, repo, branch string, files map[string][]byte) (string, error) {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	commit := hex.EncodeToString(id)
	if err := p.files.MakeBucket(ctx, "commit-"+commit, false); err != nil {
		return "", err
	}
	for path, content := range files {
		if _, err := p.files.Put(ctx, "commit-"+commit, path, content, true); err != nil {
			return "", err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := project + "/" + repo + "@" + branch
	p.commits[at], p.known[commit] = commit, at
	return commit, nil
}

// Buckets returns the names of the requested buckets, in the order of the requests.
func (p *Pachyderm) Buckets() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.buckets...)
}

var isCommit = regexp.MustCompile(`^[0-9a-f]{32}$`)

// commit returns the commit that a bucket's name refers to.
func (p *Pachyderm) commit(bucket string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buckets = append(p.buckets, bucket)
	parts := strings.Split(bucket, ".")
	commit, branch, project := "", "master", "default"
	if len(parts) > 1 && isCommit.MatchString(parts[0]) {
		commit, parts = parts[0], parts[1:]
	}
	if len(parts) > 2 {
		project, parts = parts[2], parts[:2]
	}
	if len(parts) > 1 {
		branch, parts = parts[0], parts[1:]
	}
	at := project + "/" + parts[0] + "@" + branch
	if commit != "" {
		return commit, p.known[commit] == at
	}
	commit, ok := p.commits[at]
	return commit, ok
}

// ServeHTTP serves a request.
func (p *Pachyderm) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), p.Patience)
	defer cancel()
	if !signedWith(r, p.Token) && (p.Token != "" || r.Header.Get("Authorization") != "") {
		refuse(w, http.StatusForbidden, "SignatureDoesNotMatch")
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	commit, ok := p.commit(bucket)
	query := r.URL.Query()
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		refuse(w, http.StatusNotImplemented, "NotImplemented")
	case !ok:
		refuse(w, http.StatusNotFound, "NoSuchBucket")
	case key != "":
		p.object(ctx, w, r, commit, key)
	case query.Has("location"):
		fmt.Fprint(w, `<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/">PACHYDERM</LocationConstraint>`)
	case query.Has("versions"), query.Has("versioning"), query.Has("uploads"), query.Has("policy"):
		refuse(w, http.StatusNotImplemented, "NotImplemented")
	case r.Method == http.MethodHead:
		w.WriteHeader(http.StatusOK)
	default:
		p.list(ctx, w, r, bucket, commit)
	}
}

// hashOf returns the gateway's ETag for a file with this ETag on the server.
func hashOf(etag string) string {
	sum := sha256.Sum256([]byte(etag))
	return hex.EncodeToString(sum[:])
}

type listed struct {
	Key          string
	LastModified string
	ETag         string
	Size         int64
}

// list responds with a page of a listing.
func (p *Pachyderm) list(ctx context.Context, w http.ResponseWriter, r *http.Request, bucket, commit string) {
	query := r.URL.Query()
	page := p.PageSize
	if asked, err := strconv.Atoi(query.Get("max-keys")); err == nil {
		page = min(page, asked)
	}
	client, err := p.files.Client()
	if err != nil {
		fail(ctx, w, http.StatusInternalServerError, "InternalError")
		return
	}
	answer := struct {
		XMLName                         xml.Name `xml:"ListBucketResult"`
		Name, Prefix, Marker, Delimiter string
		NextMarker                      string `xml:",omitempty"`
		MaxKeys                         int
		IsTruncated                     bool
		Contents                        []listed
	}{Name: bucket, Prefix: query.Get("prefix"), Marker: query.Get("marker"), Delimiter: query.Get("delimiter"), MaxKeys: page}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also ends the listing
	for o := range client.ListObjects(ctx, "commit-"+commit, minio.ListObjectsOptions{Prefix: answer.Prefix, StartAfter: answer.Marker, Recursive: answer.Delimiter == ""}) {
		if o.Err != nil {
			fail(ctx, w, http.StatusInternalServerError, "InternalError")
			return
		}
		if len(answer.Contents) == page {
			answer.IsTruncated, answer.NextMarker = true, answer.Contents[page-1].Key
			break
		}
		answer.Contents = append(answer.Contents, listed{o.Key, o.LastModified.UTC().Format(time.RFC3339), hashOf(o.ETag), o.Size})
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(answer) // fails only if the client is gone
}

// object responds with a file, or a range of it.
func (p *Pachyderm) object(ctx context.Context, w http.ResponseWriter, r *http.Request, commit, key string) {
	client, err := p.files.Client()
	if err != nil {
		fail(ctx, w, http.StatusInternalServerError, "InternalError")
		return
	}
	info, err := client.StatObject(ctx, "commit-"+commit, key, minio.StatObjectOptions{})
	if err != nil {
		fail(ctx, w, http.StatusNotFound, "NoSuchKey")
		return
	}
	file, err := client.GetObject(ctx, "commit-"+commit, key, minio.GetObjectOptions{})
	if err != nil {
		fail(ctx, w, http.StatusInternalServerError, "InternalError")
		return
	}
	defer file.Close()
	w.Header().Set("ETag", `"`+hashOf(info.ETag)+`"`)
	w.Header().Set("X-Amz-Version-Id", commit)
	// Like the gateway, it leaves ranges and conditions to net/http.
	http.ServeContent(&patient{w, ctx}, r, key, info.LastModified, io.NewSectionReader(file, 0, info.Size))
}

// fail responds with an error, or aborts a request that takes too long.
func fail(ctx context.Context, w http.ResponseWriter, status int, code string) {
	if ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
	refuse(w, status, code)
}

// patient aborts a response that takes too long.
type patient struct {
	http.ResponseWriter
	ctx context.Context
}

func (p *patient) Write(b []byte) (int, error) {
	if p.ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
	return p.ResponseWriter.Write(b)
}
