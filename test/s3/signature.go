package s3

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"strings"
)

var authorization = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([^/]+)/(([^/]+)/([^/]+)/s3/aws4_request), ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})$`)

// signedWith reports whether a request has a signature of version 4 with the token as both access key and secret.
// It does not check dates.
func signedWith(r *http.Request, token string) bool {
	match := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
	if match == nil || match[1] != token {
		return false
	}
	scope, date, region, names, signature := match[2], match[3], match[4], match[5], match[6]
	var headers strings.Builder
	for name := range strings.SplitSeq(names, ";") {
		value := strings.TrimSpace(strings.Join(r.Header.Values(name), ","))
		if name == "host" {
			value = r.Host
		}
		headers.WriteString(name + ":" + value + "\n")
	}
	request := strings.Join([]string{
		r.Method, r.URL.EscapedPath(), strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20"),
		headers.String(), names, r.Header.Get("X-Amz-Content-Sha256"),
	}, "\n")
	sum := sha256.Sum256([]byte(request))
	key := []byte("AWS4" + token)
	for _, part := range []string{date, region, "s3", "aws4_request"} {
		key = mac(key, part)
	}
	want := mac(key, "AWS4-HMAC-SHA256\n"+r.Header.Get("X-Amz-Date")+"\n"+scope+"\n"+hex.EncodeToString(sum[:]))
	return hmac.Equal([]byte(hex.EncodeToString(want)), []byte(signature))
}

func mac(key []byte, message string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(message))
	return h.Sum(nil)
}
