// Package hubstore reads models and datasets from the Hugging Face Hub, or a mirror of it.
package hubstore

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/web"
)

// Config describes how to reach the Hub.
type Config struct {
	web.Config
	// Endpoint is http[s]://host[:port][/path]; empty for HF_ENDPOINT, or else the Hub itself.
	Endpoint string
	// CredentialsDir is a directory with a file token; empty for HF_TOKEN.
	CredentialsDir string
	Anonymous      bool
}

// Repository is a Store of one revision of a model or dataset.
type Repository struct {
	client *web.Client
	source store.Source
	base   *url.URL
	// kind is models or datasets, id is org/name, and revision is the requested one.
	kind, id, revision string
	commit             string // commit of the revision when it was listed
	files              map[string]file
}

// file is a file as the Hub describes it.
type file struct {
	store.Object
	sums store.Sums
}

const form = "give hf://org/name[@revision][/path] for a model, or hf://datasets/org/name[@revision][/path]"

var (
	part = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	// commit matches a git commit ID, by SHA-1 or SHA-256. It becomes part of URLs, and is shown to
	// people.
	commit = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
)

// Parse parses what follows hf:// in a source. A slash in a revision is written %2F.
func Parse(s *store.Source, rest string) error {
	kind := "models"
	for _, k := range []string{"models", "datasets"} {
		if after, is := strings.CutPrefix(rest, k+"/"); is {
			kind, rest = k, after
			break
		}
	}
	org, rest, _ := strings.Cut(rest, "/")
	name, key, _ := strings.Cut(rest, "/")
	name, revision, pinned := strings.Cut(name, "@")
	if !pinned {
		revision = "main"
	}
	revision, err := url.PathUnescape(revision)
	if err != nil || revision == "" || !part.MatchString(org) || !part.MatchString(name) || strings.ContainsFunc(revision, func(r rune) bool { return r < ' ' }) {
		return errors.New("is not a repository; " + form)
	}
	s.Bucket, s.Key = kind+"/"+org+"/"+name+"@"+revision, key
	return nil
}

// New returns the Store of an hf:// source. It sends nothing yet.
func New(source store.Source, config Config) (store.Store, error) {
	repository, revision, _ := strings.Cut(source.Bucket, "@")
	kind, id, _ := strings.Cut(repository, "/")
	raw := cmp.Or(config.Endpoint, os.Getenv("HF_ENDPOINT"), "https://huggingface.co")
	base, err := url.Parse(strings.TrimRight(raw, "/"))
	switch {
	case err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" || base.RawQuery != "":
		return nil, store.Usage(errors.New("--endpoint is not of the form http[s]://host[:port][/path]"))
	case base.User != nil:
		return nil, store.Usage(errors.New("--endpoint holds credentials; give them in the environment or as files"))
	}
	config.Origin = base
	if !config.Anonymous {
		config.Authorize = tokenOf(config.CredentialsDir)
	}
	client, err := web.New(config.Config)
	if err != nil {
		return nil, store.Usage(err)
	}
	return &Repository{client: client, source: source, base: base, kind: kind, id: id, revision: revision}, nil
}

// tokenOf returns a function that authorizes with a token, if there is one: most of the Hub is public.
// If dir is set, it must have a token.
func tokenOf(dir string) func(context.Context, http.Header) error {
	return func(_ context.Context, header http.Header) error {
		token := strings.TrimSpace(os.Getenv("HF_TOKEN"))
		if dir != "" {
			var err error
			if token, err = web.Secret(dir, "token", "HF_TOKEN"); err != nil {
				return err
			}
			if token == "" {
				return fmt.Errorf("%w: --credentials-dir lacks token", store.ErrNoCredentials)
			}
		}
		if token != "" {
			header.Set("Authorization", "Bearer "+token)
		}
		return nil
	}
}

// address returns the URL of a path below the endpoint. The path's parts may contain slashes.
func (r *Repository) address(parts ...string) *url.URL {
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = url.PathEscape(p)
	}
	u := *r.base
	u.Path = r.base.Path + "/" + strings.Join(parts, "/")
	u.RawPath = r.base.EscapedPath() + "/" + strings.Join(escaped, "/")
	return &u
}

// maxResponse bounds one answer of the API, in bytes.
const maxResponse = 64 * store.MiB

// withAdvice adds advice if the Hub denies access. The Hub also reports private repositories as not found.
func withAdvice(err error) error {
	return store.WithAdvice(err, "check the name, the token, and that its owner may read the repository", "")
}

// List implements store.Store. All objects are of the commit that the revision names now.
func (r *Repository) List(ctx context.Context, each func(store.Object) error) error {
	org, name, _ := strings.Cut(r.id, "/")
	body, _, err := r.client.Read(ctx, r.address("api", r.kind, org, name, "revision", r.revision).String(), nil, maxResponse)
	if err != nil {
		return fmt.Errorf("ask for revision %s: %w", r.revision, withAdvice(err))
	}
	var of struct{ SHA string }
	if err := json.Unmarshal(body, &of); err != nil || !commit.MatchString(of.SHA) {
		return fmt.Errorf("ask for revision %s: the answer names no commit", r.revision)
	}
	r.commit, r.files = of.SHA, map[string]file{}
	folder, recursive := strings.TrimSuffix(r.source.ListPrefix(), "/"), "true"
	if !strings.HasSuffix(r.source.ListPrefix(), "/") {
		folder = path.Dir("/" + folder)[1:] // the folder of the one file, or of the fixed beginning of a pattern
		if r.source.Single() {
			recursive = "false"
		}
	}
	parts := []string{"api", r.kind, org, name, "tree", r.commit}
	if folder != "" {
		parts = append(parts, strings.Split(folder, "/")...)
	}
	return r.tree(ctx, r.address(parts...), url.Values{"recursive": {recursive}}, each)
}

// entry is an entry of a tree, as the API returns it.
type entry struct {
	Type, Path, OID string
	Size            int64
	LFS             *struct {
		OID  string
		Size int64
	}
}

var next = regexp.MustCompile(`<([^<>]*)>\s*;\s*rel="?next"?`)

// tree lists all pages. It uses only the query of the next page's address: a mirror may name another
// host there.
func (r *Repository) tree(ctx context.Context, address *url.URL, query url.Values, each func(store.Object) error) error {
	for seen := map[string]bool{}; ; {
		address.RawQuery = query.Encode()
		if seen[address.RawQuery] {
			return errors.New("list the tree: the server returned the same page token twice")
		}
		seen[address.RawQuery] = true
		body, header, err := r.client.Read(ctx, address.String(), nil, maxResponse)
		if err != nil {
			return fmt.Errorf("list the tree: %w", withAdvice(err))
		}
		var page []entry
		if err := json.Unmarshal(body, &page); err != nil {
			return fmt.Errorf("list the tree: the response is not a list of entries: %w", err)
		}
		for _, e := range page {
			if e.Type == "directory" {
				continue
			}
			f, err := fileOf(e)
			if err != nil {
				return err
			}
			if r.source.Single() && e.Path != r.source.Key {
				continue
			}
			r.files[e.Path] = f
			if err := each(f.Object); err != nil {
				return err
			}
		}
		m := next.FindStringSubmatch(header.Get("Link"))
		if m == nil {
			return nil
		}
		to, err := url.Parse(m[1])
		if err != nil || to.RawQuery == "" {
			return errors.New("list the tree: the answer's Link names no next page")
		}
		query = to.Query()
	}
}

// fileOf returns a file, identified by the hash of its content: its SHA-256 if git LFS or Xet stores
// it, else git's object ID.
func fileOf(e entry) (file, error) {
	f := file{Object: store.Object{Key: e.Path, Size: e.Size}}
	if e.LFS == nil {
		if sum, err := hex.DecodeString(e.OID); err != nil || len(sum) != 20 || e.Size < 0 {
			return file{}, fmt.Errorf("list the tree: %q has no hash", e.Path)
		}
		f.ETag, f.sums = "git-sha1:"+e.OID, store.Sums{GitSHA1: e.OID, GitSize: e.Size}
		return f, nil
	}
	sum, err := hex.DecodeString(strings.TrimPrefix(e.LFS.OID, "sha256:"))
	if err != nil || len(sum) != 32 || e.LFS.Size < 0 {
		return file{}, fmt.Errorf("list the tree: %q has no SHA-256", e.Path)
	}
	f.Size, f.ETag = e.LFS.Size, "sha256:"+hex.EncodeToString(sum)
	f.sums = store.Sums{SHA256: base64.StdEncoding.EncodeToString(sum)}
	return f, nil
}

// Revision implements store.Revisioned.
func (r *Repository) Revision() string { return r.commit }

// content returns the URL of a file.
func (r *Repository) content(key string) string {
	var parts []string
	if r.kind != "models" {
		parts = append(parts, r.kind)
	}
	parts = append(parts, strings.Split(r.id, "/")...)
	parts = append(parts, "resolve", r.commit)
	return r.address(append(parts, strings.Split(key, "/")...)...).String()
}

// Stat implements store.Store: a file of a commit does not change.
func (r *Repository) Stat(ctx context.Context, key, _ string) (store.Object, store.Sums, error) {
	f, known := r.files[key]
	if !known {
		return store.Object{}, store.Sums{}, store.ErrGone
	}
	ranges, size, err := r.client.Ranges(ctx, r.content(key), nil, f.Object)
	if err != nil {
		return store.Object{}, store.Sums{}, withAdvice(err)
	}
	if size >= 0 && size != f.Size {
		return store.Object{}, store.Sums{}, otherSize(f, size)
	}
	o := f.Object
	o.NoRanges = !ranges
	return o, f.sums, nil
}

func otherSize(f file, size int64) error {
	return fmt.Errorf("%w: it has %d bytes, and the tree says %d", store.ErrChanged, size, f.Size)
}

// Open implements store.Store.
func (r *Repository) Open(ctx context.Context, object store.Object, part store.Span) (store.Stream, error) {
	f, known := r.files[object.Key]
	if !known {
		return store.Stream{}, store.ErrGone
	}
	s, err := r.client.Open(ctx, r.content(object.Key), nil, object, part)
	if err != nil {
		return store.Stream{}, withAdvice(err)
	}
	if s.Size != f.Size {
		_ = s.Body.Close()
		return store.Stream{}, otherSize(f, s.Size)
	}
	s.Sums = f.sums
	return s, nil
}

// Parts implements store.Store: files have none.
func (r *Repository) Parts(context.Context, store.Object, int) ([]int64, error) { return nil, nil }
