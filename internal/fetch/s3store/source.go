package s3store

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Parse parses what follows s3:// in a source.
func Parse(s *store.Source, rest string) error {
	s.Bucket, s.Key, _ = strings.Cut(rest, "/")
	if s.Bucket == "" {
		return fmt.Errorf("names no bucket; give s3://bucket/key")
	}
	return checkBucket(s.Bucket)
}

// ParsePachyderm parses what follows pachyderm:// in a source.
func ParsePachyderm(s *store.Source, rest string) (err error) {
	if s.Bucket, s.Key, err = parsePachyderm(rest); err != nil {
		return err
	}
	return checkBucket(s.Bucket)
}

// checkBucket rejects names that the client would reject as well, but again with every request.
func checkBucket(bucket string) error {
	if err := s3utils.CheckValidBucketName(bucket); err != nil {
		return fmt.Errorf("has bucket %q: %w; give the name of a bucket: 3 to 63 letters, digits, hyphens and dots", bucket, err)
	}
	return nil
}

// commitID matches the IDs of Pachyderm's commits.
var commitID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// parsePachyderm converts [project/]repo@ref/path to the bucket of Pachyderm's S3 gateway,
// [[commit.]branch.]repo[.project], and a key. ref is a branch, a commit, or branch=commit; for a
// commit without a branch, the branch is master.
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

// parseEndpoint parses --endpoint: a URL, or host:port, which means https.
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
