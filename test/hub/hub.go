// Package hub is a small repository server for tests, written from the public description of the Hugging Face Hub's
// HTTP API: revisions, paged trees, and files, which are served directly or, if they are in Git LFS, by a signed
// redirect to another host.
package hub

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// File is a file of a commit.
type File struct {
	Content []byte
	// LFS: the repository has only a pointer to the file.
	LFS bool
}

// Hub is the API's handler.
type Hub struct {
	// Token, if set, is required with every request.
	Token string
	// Page is the number of entries per page of a listing; 1000 if it is 0.
	Page int
	// CDN is the base URL of Blobs.
	CDN string
	// Serve responds with content, and supports ranges.
	Serve func(w http.ResponseWriter, r *http.Request, content []byte)

	mu    sync.Mutex
	refs  map[string]string          // repository@ref: commit
	trees map[string]map[string]File // repository@commit
	blobs map[string][]byte          // by SHA-256
}

// signature is the signature in the query of a redirect.
const signature = "signed-for-a-test"

// Commit creates a commit and sets a branch to it. A repository is named like models/org/name.
func (h *Hub) Commit(repository, branch string, files map[string]File) (commit string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refs == nil {
		h.refs, h.trees, h.blobs = map[string]string{}, map[string]map[string]File{}, map[string][]byte{}
	}
	sum := sha1.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(sum, "%s %s\n", name, gitSHA1(files[name].Content))
		h.blobs[sha256Hex(files[name].Content)] = files[name].Content
	}
	commit = hex.EncodeToString(sum.Sum(nil))
	h.refs[repository+"@"+branch], h.refs[repository+"@"+commit] = commit, commit
	h.trees[repository+"@"+commit] = maps.Clone(files)
	return commit
}

func gitSHA1(content []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(content))
	_, _ = h.Write(content)
	return hex.EncodeToString(h.Sum(nil))
}

func sha256Hex(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// ServeHTTP implements http.Handler.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.Token != "" && r.Header.Get("Authorization") != "Bearer "+h.Token {
		refuse(w, http.StatusUnauthorized, "RepoNotFound", "Repository not found")
		return
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	for i, p := range parts {
		parts[i], _ = url.PathUnescape(p) // cannot fail: the server has parsed it
	}
	switch {
	case len(parts) == 6 && parts[0] == "api" && parts[4] == "revision":
		h.revision(w, strings.Join(parts[1:4], "/"), parts[5])
	case len(parts) >= 6 && parts[0] == "api" && parts[4] == "tree":
		h.tree(w, r, strings.Join(parts[1:4], "/"), parts[5], strings.Join(parts[6:], "/"))
	case len(parts) > 5 && parts[0] == "datasets" && parts[3] == "resolve":
		h.resolve(w, r, strings.Join(parts[:3], "/"), parts[4], strings.Join(parts[5:], "/"))
	case len(parts) > 4 && parts[2] == "resolve":
		h.resolve(w, r, "models/"+strings.Join(parts[:2], "/"), parts[3], strings.Join(parts[4:], "/"))
	default:
		refuse(w, http.StatusNotFound, "", "no such page")
	}
}

// refuse responds with an error as the Hub does, with its text in headers.
func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("X-Error-Code", code)
	w.Header().Set("X-Error-Message", message)
	w.WriteHeader(status)
}

func (h *Hub) files(repository, ref string) (commit string, files map[string]File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	commit = h.refs[repository+"@"+ref]
	return commit, h.trees[repository+"@"+commit]
}

func (h *Hub) revision(w http.ResponseWriter, repository, ref string) {
	commit, files := h.files(repository, ref)
	if files == nil {
		refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+ref)
		return
	}
	_, id, _ := strings.Cut(repository, "/")
	answer(w, map[string]any{"id": id, "sha": commit, "private": h.Token != ""})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // fails only if the client is gone
}

// tree lists a folder, or all files below it, page by page.
func (h *Hub) tree(w http.ResponseWriter, r *http.Request, repository, ref, folder string) {
	_, files := h.files(repository, ref)
	entries := map[string]map[string]any{}
	for name, f := range files {
		rest, below := name, true
		if folder != "" {
			rest, below = strings.CutPrefix(name, folder+"/")
		}
		if !below {
			continue
		}
		if r.URL.Query().Get("recursive") != "true" && strings.Contains(rest, "/") {
			continue
		}
		entries[name] = entryOf(name, f)
		for dir := path.Dir(name); dir != "." && dir != folder; dir = path.Dir(dir) {
			entries[dir] = map[string]any{"type": "directory", "oid": gitSHA1([]byte(dir)), "size": 0, "path": dir}
		}
	}
	if len(entries) == 0 {
		refuse(w, http.StatusNotFound, "EntryNotFound", folder+" does not exist on "+strconv.Quote(ref))
		return
	}
	size := h.Page
	if size == 0 {
		size = 1000
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	names := slices.Sorted(maps.Keys(entries))
	page := []map[string]any{}
	for _, name := range names[min(from, len(names)):min(from+size, len(names))] {
		page = append(page, entries[name])
	}
	if from+size < len(names) {
		next := r.URL.Query()
		next.Set("cursor", strconv.Itoa(from+size))
		w.Header().Set("Link", fmt.Sprintf("<https://huggingface.co%s?%s>; rel=\"next\"", r.URL.EscapedPath(), next.Encode()))
	}
	answer(w, page)
}

func entryOf(name string, f File) map[string]any {
	e := map[string]any{"type": "file", "size": len(f.Content), "path": name, "oid": gitSHA1(f.Content)}
	if f.LFS {
		pointer := fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", sha256Hex(f.Content), len(f.Content))
		e["oid"] = gitSHA1([]byte(pointer))
		e["lfs"] = map[string]any{"oid": sha256Hex(f.Content), "size": len(f.Content), "pointerSize": len(pointer)}
	}
	return e
}

func (h *Hub) resolve(w http.ResponseWriter, r *http.Request, repository, ref, name string) {
	commit, files := h.files(repository, ref)
	f, is := files[name]
	if !is {
		refuse(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	}
	w.Header().Set("X-Repo-Commit", commit)
	if f.LFS {
		w.Header().Set("X-Linked-Etag", `"`+sha256Hex(f.Content)+`"`)
		w.Header().Set("X-Linked-Size", strconv.Itoa(len(f.Content)))
		http.Redirect(w, r, h.CDN+"/blobs/"+sha256Hex(f.Content)+"?X-Amz-Signature="+signature, http.StatusFound)
		return
	}
	h.Serve(w, r, f.Content)
}

// Blobs returns the handler of the host with the LFS files. Like an object store, it requires a signature and
// rejects a request that also has another credential.
func (h *Hub) Blobs() http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		content, is := h.blobs[path.Base(r.URL.Path)]
		h.mu.Unlock()
		switch {
		case r.Header.Get("Authorization") != "":
			http.Error(w, "Only one auth mechanism allowed", http.StatusBadRequest)
		case r.URL.Query().Get("X-Amz-Signature") != signature:
			http.Error(w, "AccessDenied", http.StatusForbidden)
		case !is:
			http.NotFound(w, r)
		default:
			h.Serve(w, r, content)
		}
	}
}
