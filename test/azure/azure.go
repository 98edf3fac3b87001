// Package azure is a small blob server for tests, written from the public description of Azure Blob Storage's REST
// API: paged listings, reads of ranges with If-Match, and requests that are signed with a Shared Key or have a
// shared access signature.
package azure

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Account is the handler of one account, whose name is the first segment of every path.
type Account struct {
	Name string
	// Key, in base64, and SAS authorize requests; without both, everybody may read.
	Key, SAS string
	// Page is the number of blobs per page of a listing.
	Page int

	mu    sync.Mutex
	blobs map[string]blob // by container/name
	made  int
}

type blob struct {
	content []byte
	etag    string
	md5     string
}

// Put stores a blob; with summed, it has an MD5, as after most uploads.
func (a *Account) Put(container, name, content string, summed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.blobs == nil {
		a.blobs = map[string]blob{}
	}
	a.made++
	b := blob{content: []byte(content), etag: fmt.Sprintf(`"0x8D%014X"`, a.made)}
	if summed {
		sum := md5.Sum(b.content)
		b.md5 = base64.StdEncoding.EncodeToString(sum[:])
	}
	a.blobs[container+"/"+name] = b
}

// ServeHTTP implements http.Handler.
func (a *Account) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, ours := strings.CutPrefix(r.URL.Path, "/"+a.Name+"/")
	switch {
	case !ours:
		refuse(w, http.StatusBadRequest, "InvalidUri")
	case !a.signed(r):
		refuse(w, http.StatusForbidden, "AuthenticationFailed")
	case r.Header.Get("X-Ms-Version") == "" && a.Key+a.SAS != "":
		refuse(w, http.StatusBadRequest, "MissingRequiredHeader")
	case r.URL.Query().Get("comp") == "list":
		a.list(w, r, rest)
	default:
		a.read(w, r, rest)
	}
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Ms-Error-Code", code)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>%s</Code><Message>of a test</Message></Error>", code)
}

// signed reports whether a request is authorized.
func (a *Account) signed(r *http.Request) bool {
	if a.Key+a.SAS == "" {
		return true
	}
	if a.SAS != "" && strings.Contains("&"+r.URL.RawQuery+"&", "&"+a.SAS+"&") {
		return true
	}
	key, err := base64.StdEncoding.DecodeString(a.Key)
	date, bad := http.ParseTime(r.Header.Get("X-Ms-Date"))
	if err != nil || len(key) == 0 || bad != nil || time.Since(date).Abs() > 15*time.Minute {
		return false
	}
	h := r.Header
	text := r.Method + "\n" + h.Get("Content-Encoding") + "\n" + h.Get("Content-Language") + "\n\n" + h.Get("Content-MD5") + "\n" + h.Get("Content-Type") + "\n\n" +
		h.Get("If-Modified-Since") + "\n" + h.Get("If-Match") + "\n" + h.Get("If-None-Match") + "\n" + h.Get("If-Unmodified-Since") + "\n" + h.Get("Range") + "\n"
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if strings.HasPrefix(name, "X-Ms-") {
			text += strings.ToLower(name) + ":" + h.Get(name) + "\n"
		}
	}
	text += "/" + a.Name + r.URL.EscapedPath()
	query := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		text += "\n" + strings.ToLower(name) + ":" + strings.Join(query[name], ",")
	}
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte(text))
	return h.Get("Authorization") == "SharedKey "+a.Name+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// list responds with a page of a container's blobs.
func (a *Account) list(w http.ResponseWriter, r *http.Request, container string) {
	type properties struct {
		Modified string `xml:"Last-Modified"`
		ETag     string `xml:"Etag"`
		Size     int    `xml:"Content-Length"`
		MD5      string `xml:"Content-MD5"`
	}
	type one struct {
		Name       string
		Properties properties
	}
	var page struct {
		XMLName    xml.Name `xml:"EnumerationResults"`
		Blobs      []one    `xml:"Blobs>Blob"`
		NextMarker string
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	prefix := container + "/" + r.URL.Query().Get("prefix")
	known := false
	for _, name := range slices.Sorted(maps.Keys(a.blobs)) {
		known = known || strings.HasPrefix(name, container+"/")
		if !strings.HasPrefix(name, prefix) || name < r.URL.Query().Get("marker") {
			continue
		}
		if a.Page > 0 && len(page.Blobs) == a.Page {
			page.NextMarker = name
			break
		}
		b := a.blobs[name]
		page.Blobs = append(page.Blobs, one{strings.TrimPrefix(name, container+"/"), properties{modified, strings.Trim(b.etag, `"`), len(b.content), b.md5}})
	}
	if !known {
		refuse(w, http.StatusNotFound, "ContainerNotFound")
		return
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(page) // fails only if the client is gone
}

const modified = "Fri, 01 May 2026 10:00:00 GMT"

// read responds with a blob or a range of it.
func (a *Account) read(w http.ResponseWriter, r *http.Request, name string) {
	a.mu.Lock()
	b, is := a.blobs[name]
	a.mu.Unlock()
	if !is {
		refuse(w, http.StatusNotFound, "BlobNotFound")
		return
	}
	if match := r.Header.Get("If-Match"); match != "" && match != b.etag {
		refuse(w, http.StatusPreconditionFailed, "ConditionNotMet")
		return
	}
	w.Header().Set("ETag", b.etag)
	w.Header().Set("Content-Type", "application/octet-stream")
	if b.md5 != "" && r.Header.Get("Range") == "" {
		w.Header().Set("Content-MD5", b.md5)
	}
	w.Header().Set("X-Ms-Blob-Content-Length", strconv.Itoa(len(b.content)))
	at, _ := http.ParseTime(modified)
	http.ServeContent(w, r, "", at, bytes.NewReader(b.content))
}
