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

// A Fault says which requests it hits, and what happens to them. Of several
// that fit a request the first does.
type Fault struct {
	// Method and Path choose requests; empty is any. Path is the end of the decoded
	// path. Query is a parameter that must be there.
	Method, Path, Query string
	// Skip leaves the first so many requests that fit alone; Times is how many of
	// those after them are hit, 0 all.
	Skip, Times int

	// Before is called first. It may change the object that is asked for.
	Before func()
	// Delay lets the client wait for the first byte.
	Delay time.Duration
	// Status answers with that status and the S3 error code Code; the server is not
	// asked.
	Status int
	Code   string
	// Drop takes headers of the request away: a server that knows no If-Match.
	Drop []string
	// ETag is what the answer says instead of the object's.
	ETag string
	// Edit makes another body of a good answer's body; its length is then right.
	Edit func(body []byte) []byte
	// Cut closes the connection, Reset resets it, and Hang says nothing any more,
	// after so many bytes of the body; the length that was announced is the whole.
	Cut, Reset, Hang *int64
	// Drip sends one byte of the body each so long.
	Drip time.Duration
}

// After is for Cut, Reset and Hang.
func After(bytes int64) *int64 { return &bytes }

// Flip is an Edit that alters one byte.
func Flip(offset int) func([]byte) []byte {
	return func(body []byte) []byte {
		altered := bytes.Clone(body)
		altered[offset] ^= 1
		return altered
	}
}

// Shorten is an Edit that leaves nothing but the first bytes.
func Shorten(length int) func([]byte) []byte {
	return func(body []byte) []byte { return body[:min(length, len(body))] }
}

// Entries is an Edit of a listing that adds objects of one byte that the server
// cannot hold, for its objects are files.
func Entries(keys ...string) func([]byte) []byte {
	var added bytes.Buffer
	for _, key := range keys {
		added.WriteString("<Contents><Key>")
		_ = xml.EscapeText(&added, []byte(key)) // a buffer takes all
		added.WriteString("</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>" +
			"<ETag>&#34;9dd4e461268c8034f5c8564e155c67a6&#34;</ETag><Size>1</Size><StorageClass>STANDARD</StorageClass></Contents>")
	}
	return func(body []byte) []byte {
		const end = "</ListBucketResult>"
		return bytes.Replace(body, []byte(end), append(added.Bytes(), end...), 1)
	}
}

// fault is a fault and how often it was asked.
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

// wait reports whether all of that time has passed.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// refuse answers as S3 servers do.
func refuse(w http.ResponseWriter, status int, code string) {
	if code == "" {
		code = strings.ReplaceAll(http.StatusText(status), " ", "")
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>%s, for a test.</Message>"+
		"<Resource>/</Resource><RequestId>1</RequestId></Error>", code, code)
}

// edit replaces the body of an answer.
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
