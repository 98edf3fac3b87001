package protocol

import "strings"

// EndpointOf returns the server of a URL, with or without its scheme; empty for Amazon's own. All URLs
// of one server give the same result, however they are written: http and https with their default ports
// count as one.
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
