package protocol

import "strings"

// EndpointOf is the server of a URL, with or without its scheme; empty for Amazon's own. What was loaded
// from the same one is not outdated, however its URL is written.
func EndpointOf(raw string) string {
	if _, rest, found := strings.Cut(raw, "://"); found {
		raw = rest
	}
	raw = strings.ToLower(strings.TrimRight(raw, "/"))
	raw = strings.TrimSuffix(strings.TrimSuffix(raw, ":443"), ":80")
	if raw == "s3.amazonaws.com" {
		return ""
	}
	return raw
}
