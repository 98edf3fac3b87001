package fetch

import (
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// Kinds of sources.
const (
	kindS3        = "s3"
	kindPachyderm = "pachyderm"
	kindFile      = "file"
)

// Source is a parsed SOURCE.
type Source struct {
	// URL is it as it was given.
	URL string
	// Kind is "s3", "pachyderm" or "file".
	Kind string
	// Bucket of S3, and of Pachyderm's gateway.
	Bucket string
	// Key is what is asked for: one object if it is not empty and does not end in
	// a slash, else all below it. For a directory or a file, its path.
	Key string
	// Glob is set where Key has wildcards; Prefix is then what is listed.
	Glob *glob
	// Prefix is what keys lose to become paths.
	Prefix string
}

// single tells whether the source is one object.
func (s Source) single() bool {
	return s.Glob == nil && s.Key != "" && !strings.HasSuffix(s.Key, "/")
}

// ParseSource reads s3://bucket/key, pachyderm://[project/]repo@branch/path and
// file:///path. Keys are taken as they are: nothing in them is decoded.
func ParseSource(raw string) (Source, error) {
	scheme, rest, found := strings.Cut(raw, "://")
	if !found {
		return Source{}, fmt.Errorf("source %q has no scheme; give s3://bucket/key, pachyderm://repo@branch/path or file:///path", raw)
	}
	s := Source{URL: raw, Kind: scheme}
	switch scheme {
	case kindS3:
		s.Bucket, s.Key, _ = strings.Cut(rest, "/")
		if s.Bucket == "" {
			return Source{}, fmt.Errorf("source %q names no bucket; give s3://bucket/key", raw)
		}
	case kindPachyderm:
		var err error
		if s.Bucket, s.Key, err = parsePachyderm(rest); err != nil {
			return Source{}, fmt.Errorf("source %q %w", raw, err)
		}
	case kindFile:
		if !filepath.IsAbs(rest) {
			return Source{}, fmt.Errorf("source %q is not absolute; give file:///path", raw)
		}
		s.Key = rest
	default:
		return Source{}, fmt.Errorf("source %q is of the unknown scheme %q; it is one of s3, pachyderm, file", raw, scheme)
	}
	if s.Bucket != "" {
		// The client would find it out as well, but with every request anew.
		if err := s3utils.CheckValidBucketName(s.Bucket); err != nil {
			return Source{}, fmt.Errorf("source %q: bucket %q: %w; give the name of a bucket: 3 to 63 letters, digits, hyphens and dots", raw, s.Bucket, err)
		}
	}
	return s, s.resolve()
}

// resolve finds out what keys lose to become paths, and the glob.
func (s *Source) resolve() error {
	start := globStart(s.Key)
	if start >= 0 && s.Kind != kindFile {
		g, err := compileGlob(s.Key)
		if err != nil {
			return fmt.Errorf("source %q: %w", s.URL, err)
		}
		s.Glob = &g
		s.Prefix = unescape(s.Key[:strings.LastIndexByte(s.Key[:start], '/')+1])
		return nil
	}
	if s.Kind != kindFile {
		s.Key = unescape(s.Key)
	}
	s.Prefix = s.Key[:strings.LastIndexByte(s.Key, '/')+1]
	return nil
}

// path is where key goes; whether it is wanted at all is the glob's word.
func (s Source) path(key string) (string, bool) {
	if !strings.HasPrefix(key, s.Prefix) || s.Glob != nil && !s.Glob.match(key) {
		return "", false
	}
	return key[len(s.Prefix):], true
}

// listPrefix is the longest prefix of all keys that are asked for.
func (s Source) listPrefix() string {
	if s.Glob == nil {
		return s.Key
	}
	return unescape(s.Key[:globStart(s.Key)])
}

// commitID is how Pachyderm names commits.
var commitID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// parsePachyderm turns [project/]repo@ref/path into the bucket of Pachyderm's S3
// gateway, [[commit.]branch.]repo[.project], and a key. ref is a branch, a
// commit, or branch=commit; a commit without a branch is looked for on master.
func parsePachyderm(rest string) (bucket, key string, err error) {
	left, right, found := strings.Cut(rest, "@")
	if !found {
		return "", "", fmt.Errorf("names no branch; give pachyderm://[project/]repo@branch-or-commit/path")
	}
	ref, key, _ := strings.Cut(right, "/")
	project, repo, hasProject := strings.Cut(left, "/")
	if !hasProject {
		project, repo = "", left
	}
	branch, commit, pinned := strings.Cut(ref, "=")
	if !pinned && commitID.MatchString(ref) {
		branch, commit, pinned = "master", ref, true
	}
	parts := []string{branch, repo}
	if pinned {
		parts = append([]string{commit}, parts...)
	}
	if hasProject {
		parts = append(parts, project)
	}
	for _, part := range parts {
		if part == "" || strings.ContainsAny(part, "./") {
			return "", "", fmt.Errorf("has an empty part or one with a dot before its path; give pachyderm://[project/]repo@branch-or-commit/path")
		}
	}
	return strings.Join(parts, "."), key, nil
}

// parseEndpoint reads --endpoint: a URL, or host:port, which means https.
func parseEndpoint(raw string) (host string, secure bool, err error) {
	if raw == "" {
		return "s3.amazonaws.com", true, nil
	}
	if !strings.Contains(raw, "://") {
		raw = "https://" + raw
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return "", false, fmt.Errorf("--endpoint %q is not a URL: %w", raw, err)
	case u.User != nil:
		return "", false, fmt.Errorf("--endpoint holds credentials; give them in the environment or as files")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", strings.Trim(u.Path, "/") != "", u.RawQuery != "":
		return "", false, fmt.Errorf("--endpoint %q is not of the form http[s]://host[:port]", raw)
	}
	return u.Host, u.Scheme == "https", nil
}
