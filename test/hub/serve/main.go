// Command serve runs in a test's own network, where the test itself has no address. It serves the files of a folder
// below /files/, and the models and datasets beside it as a Hub.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/test/hub"
)

func main() {
	address := flag.String("address", "", "host:port of the files and of the Hub's API")
	blobs := flag.String("blobs", "", "host:port of the Hub's large files")
	dir := flag.String("dir", "", "folder with files/, and repositories such as models/org/name/")
	flag.Parse()
	if err := serve(*address, *blobs, *dir, os.Getenv("HUB_TOKEN")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(address, blobs, dir, token string) error {
	h := &hub.Hub{Token: token, CDN: "http://" + blobs, Page: 3, Serve: func(w http.ResponseWriter, r *http.Request, content []byte) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}}
	for _, kind := range []string{"models", "datasets"} {
		repositories, err := filepath.Glob(filepath.Join(dir, kind, "*", "*"))
		if err != nil {
			return err
		}
		for _, repository := range repositories {
			if err := commit(h, dir, repository); err != nil {
				return err
			}
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(filepath.Join(dir, "files")))))
	mux.Handle("/", h)
	ended := make(chan error, 2)
	for at, handler := range map[string]http.Handler{address: mux, blobs: h.Blobs()} {
		server := &http.Server{Addr: at, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
		go func() { ended <- server.ListenAndServe() }()
	}
	return <-ended
}

// commit commits the content of a repository's folder. Files whose names end in .bin are in LFS.
func commit(h *hub.Hub, dir, repository string) error {
	files := map[string]hub.File{}
	err := filepath.WalkDir(repository, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		path, err := filepath.Rel(repository, name)
		files[path] = hub.File{Content: content, LFS: strings.HasSuffix(path, ".bin")}
		return err
	})
	if err != nil {
		return err
	}
	name, err := filepath.Rel(dir, repository)
	if err != nil {
		return err
	}
	h.Commit(name, "main", files)
	return nil
}
