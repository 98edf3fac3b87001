package store

import (
	"fmt"
	"path"
	"strings"
)

// Kinds of sources.
const (
	KindS3        = "s3"
	KindPachyderm = "pachyderm"
	KindFile      = "file"
	KindHTTP      = "http"
	KindHTTPS     = "https"
	KindHub       = "hf"
	KindOCI       = "oci"
	KindGCS       = "gs"
	KindAzure     = "azblob"
)

// Source is the parsed URL of a source.
type Source struct {
	// URL is the source as it was given.
	URL string
	// Kind is the scheme of URL.
	Kind string
	// Bucket is the bucket of S3 or of Pachyderm's gateway, or the equivalent in other sources: the
	// container of Key.
	Bucket string
	// Key is what to read: one object if it is not empty and does not end in a slash, else everything
	// below it. For a directory or a file, it is the path.
	Key string
	// Glob is set if Key has wildcards.
	Glob *glob
	// Prefix is stripped from keys to form paths.
	Prefix string
	// Name, if set, is the path of a source that is one object.
	Name string
	// OrObject: if no file is below Key, which ends in a slash, the source is the object whose key is
	// Key without that slash.
	OrObject bool
}

// Single reports whether the source is one object.
func (s Source) Single() bool {
	return s.Glob == nil && s.Key != "" && !strings.HasSuffix(s.Key, "/")
}

// Resolve sets Prefix and Glob from Key.
func (s *Source) Resolve() error {
	start := globStart(s.Key)
	if start >= 0 && s.Kind != KindFile {
		g, err := compileGlob(s.Key)
		if err != nil {
			return fmt.Errorf("source %q: %w", s.URL, err)
		}
		s.Glob = &g
		s.Prefix = unescape(s.Key[:strings.LastIndexByte(s.Key[:start], '/')+1])
		return nil
	}
	if s.Kind != KindFile {
		s.Key = unescape(s.Key)
	}
	s.Prefix = s.Key[:strings.LastIndexByte(s.Key, '/')+1]
	return nil
}

// Path returns the path of key; false if the source does not include key.
func (s Source) Path(key string) (string, bool) {
	if s.OrObject && key == s.Object() {
		return path.Base(key), true
	}
	if !strings.HasPrefix(key, s.Prefix) || s.Glob != nil && !s.Glob.match(key) {
		return "", false
	}
	if s.Name != "" {
		return s.Name, true
	}
	return key[len(s.Prefix):], true
}

// Object returns the key of the object that OrObject refers to.
func (s Source) Object() string { return strings.TrimSuffix(s.Key, "/") }

// ListPrefix returns the longest prefix of all keys to read.
func (s Source) ListPrefix() string {
	if s.Glob == nil {
		return s.Key
	}
	return unescape(s.Key[:globStart(s.Key)])
}
