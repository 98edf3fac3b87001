package s3

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Fault selects requests, and describes what happens to them. If several match a request, the first applies.
type Fault struct {
	// Method and Path match requests; empty matches any. Path is a suffix of the decoded path. Query is a parameter
	// that the request must have.
	Method, Path, Query string
	// Skip is the number of matching requests to leave alone. Times is the number of requests to hit after those; 0
	// is all.
	Skip, Times int

	// Before is called first. It may change the requested object.
	Before func()
	// Delay delays the response.
	Delay time.Duration
	// Status responds with that status and the S3 error code Code, without forwarding the request to the server.
	Status int
	Code   string
	// Drop removes headers of the request, to simulate a server without support for If-Match, for example.
	Drop []string
	// ETag replaces the ETag of the response.
	ETag string
	// Edit changes the body of a successful response. Content-Length is adapted.
	Edit func(body []byte) []byte
	// After so many bytes of the body, Cut closes the connection, Reset resets it, and Hang sends nothing more.
	// Content-Length is that of the whole body.
	Cut, Reset, Hang *int64
	// Drip sends the body byte by byte, with this pause after each.
	Drip time.Duration
}

// After returns a value for Cut, Reset or Hang.
func After(bytes int64) *int64 { return &bytes }

// Flip returns an Edit that changes one byte.
func Flip(offset int) func([]byte) []byte {
	return func(body []byte) []byte {
		altered := bytes.Clone(body)
		altered[offset] ^= 1
		return altered
	}
}

// Shorten returns an Edit that keeps only the first bytes.
func Shorten(length int) func([]byte) []byte {
	return func(body []byte) []byte { return body[:min(length, len(body))] }
}

// Entries returns an Edit of a listing that adds objects of one byte whose keys the server cannot store, because
// its objects are files.
func Entries(keys ...string) func([]byte) []byte {
	var added bytes.Buffer
	for _, key := range keys {
		added.WriteString("<Contents><Key>")
		_ = xml.EscapeText(&added, []byte(key)) // a Buffer never fails
		added.WriteString("</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>" +
			"<ETag>&#34;9dd4e461268c8034f5c8564e155c67a6&#34;</ETag><Size>1</Size><StorageClass>STANDARD</StorageClass></Contents>")
	}
	return func(body []byte) []byte {
		const end = "</ListBucketResult>"
		return bytes.Replace(body, []byte(end), append(added.Bytes(), end...), 1)
	}
}

// fault is a Fault with the number of requests that matched it.
type fault struct {
	Fault
	fits int
}

func (f *fault) hits(r *http.Request) bool {
	if f.Method != "" && f.Method != r.Method || !strings.HasSuffix(r.URL.Path, f.Path) || f.Query != "" && !r.URL.Query().Has(f.Query) {
		return false
	}
	f.fits++
	return f.fits > f.Skip && (f.Times == 0 || f.fits <= f.Skip+f.Times)
}

// wait waits for d. It returns false if ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// refuse responds with an error in S3's format.
func refuse(w http.ResponseWriter, status int, code string) {
	if code == "" {
		code = strings.ReplaceAll(http.StatusText(status), " ", "")
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>%s, for a test.</Message>"+
		"<Resource>/</Resource><RequestId>1</RequestId></Error>", code, code)
}

// edit replaces the body of a response.
func edit(response *http.Response, change func([]byte) []byte) error {
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	body = change(body)
	response.Body = io.NopCloser(bytes.NewReader(body))
	response.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return nil
}

// drip sends a body a byte at a time.
func drip(ctx context.Context, w io.Writer, body io.Reader, pause time.Duration) error {
	flusher := w.(*counter).to.(http.ResponseWriter)
	for {
		if _, err := io.CopyN(w, body, 1); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		flush(flusher)
		if !wait(ctx, pause) {
			return ctx.Err()
		}
	}
}
