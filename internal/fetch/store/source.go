package store

import (
	"fmt"
	"strings"
)

// Kinds of sources.
const (
	KindS3        = "s3"
	KindPachyderm = "pachyderm"
	KindFile      = "file"
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

// Single reports whether the source is one object.
func (s Source) Single() bool {
	return s.Glob == nil && s.Key != "" && !strings.HasSuffix(s.Key, "/")
}

// Resolve finds out what keys lose to become paths, and the glob.
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

// Path is where key goes; whether it is wanted at all is the glob's word.
func (s Source) Path(key string) (string, bool) {
	if !strings.HasPrefix(key, s.Prefix) || s.Glob != nil && !s.Glob.match(key) {
		return "", false
	}
	return key[len(s.Prefix):], true
}

// ListPrefix is the longest prefix of all keys that are asked for.
func (s Source) ListPrefix() string {
	if s.Glob == nil {
		return s.Key
	}
	return unescape(s.Key[:globStart(s.Key)])
}
