package s3store

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

const (
	service   = "s3"
	algorithm = "AWS4-HMAC-SHA256"
	// emptyBody is the SHA-256 of a request without a body.
	emptyBody = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// signingKey is a derived key, which is valid for a day.
type signingKey struct {
	secret, day, region string
	key                 []byte
}

// sign signs a request without a body by Signature Version 4
// (https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html). The request's query
// must be sorted and encoded as the signature requires.
func (c *connection) sign(r *http.Request, value credentials.Value, region string, now time.Time) {
	stamp := now.UTC().Format("20060102T150405Z")
	day := stamp[:len("20060102")]
	scope := day + "/" + region + "/" + service + "/aws4_request"
	r.Header["X-Amz-Date"] = []string{stamp}
	r.Header["X-Amz-Content-Sha256"] = []string{emptyBody}
	if value.SessionToken != "" {
		r.Header["X-Amz-Security-Token"] = []string{value.SessionToken}
	}
	headers, names := canonicalHeaders(r)
	canonical := sha256.Sum256([]byte(r.Method + "\n" + r.URL.EscapedPath() + "\n" + r.URL.RawQuery + "\n" + headers + "\n" + names + "\n" + emptyBody))
	signature := hmacSHA256(c.signingKey(value.SecretAccessKey, day, region), algorithm+"\n"+stamp+"\n"+scope+"\n"+hex.EncodeToString(canonical[:]))
	r.Header["Authorization"] = []string{algorithm + " Credential=" + value.AccessKeyID + "/" + scope + ", SignedHeaders=" + names + ", Signature=" + hex.EncodeToString(signature)}
}

// canonicalHeaders returns all headers of a request, one per line, and their names. Accept-Encoding is
// left out, because proxies may change it.
func canonicalHeaders(r *http.Request) (lines, names string) {
	sorted := make([]string, 0, len(r.Header)+1)
	value := make(map[string]string, len(r.Header)+1)
	add := func(name, is string) {
		sorted, value[name] = append(sorted, name), is
	}
	add("host", r.Host)
	for name, values := range r.Header {
		if name != "Accept-Encoding" {
			add(strings.ToLower(name), strings.Join(strings.Fields(values[0]), " "))
		}
	}
	slices.Sort(sorted)
	var b strings.Builder
	for _, name := range sorted {
		b.WriteString(name + ":" + value[name] + "\n")
	}
	return b.String(), strings.Join(sorted, ";")
}

// signingKey returns the key of a day. It derives it once.
func (c *connection) signingKey(secret, day, region string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := &c.key; k.secret != secret || k.day != day || k.region != region {
		key := hmacSHA256([]byte("AWS4"+secret), day)
		for _, part := range []string{region, service, "aws4_request"} {
			key = hmacSHA256(key, part)
		}
		*k = signingKey{secret, day, region, key}
	}
	return c.key.key
}

func hmacSHA256(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write([]byte(text)) // hashes do not fail
	return h.Sum(nil)
}
