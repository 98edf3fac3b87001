package ocistore

import (
	"io/fs"
	"path"
	"strings"
)

// Names of entries that delete files of the layers below, from the image specification of the OCI.
const (
	whiteoutPrefix = ".wh."
	// opaqueWhiteout deletes all files of the layers below in its directory.
	opaqueWhiteout = ".wh..wh..opq"
)

// union adds an image's layer to the files of the layers below it, as a union file system shows them: without the
// files that the layer deletes, without those of a directory that it replaces by a file, and without a file that it
// replaces by a directory. Files of the same layer are never deleted.
func union(files map[string]member, layer []member) {
	c := hiddenPathsOf(layer)
	for key := range files {
		if c.hides(key) {
			delete(files, key)
		}
	}
	for _, m := range layer {
		if _, _, is := whiteoutOf(m.Key); !is && !m.dir {
			files[m.Key] = m
		}
	}
}

// hiddenPaths holds the paths by which a layer hides files of the layers below it.
type hiddenPaths struct {
	deleted map[string]bool // each hides the path itself and everything below it
	opaque  map[string]bool // directories, each of which hides everything below it
	files   map[string]bool // files of the layer, each of which hides everything below its path
	dirs    map[string]bool // directories of the layer, each of which hides a file at its path
}

func hiddenPathsOf(layer []member) hiddenPaths {
	c := hiddenPaths{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
	for _, m := range layer {
		target, opaque, is := whiteoutOf(m.Key)
		switch {
		case m.dir:
			c.dirs[path.Clean(m.Key)] = true
		case opaque:
			c.opaque[target] = true
		case is:
			c.deleted[target] = true
		default:
			c.files[m.Key] = true
		}
	}
	return c
}

// hides reports whether the layer hides a file of the layers below it.
func (c hiddenPaths) hides(key string) bool {
	if c.deleted[key] || c.dirs[key] {
		return true
	}
	for dir := key; dir != ""; {
		dir = dir[:max(0, strings.LastIndexByte(dir, '/'))]
		if c.opaque[dir] || c.deleted[dir] || c.files[dir] {
			return true
		}
	}
	return false
}

// whiteoutOf returns what a whiteout deletes: the file or directory target, or with opaque everything below that
// directory. A name that only starts like a whiteout, and an invalid path, is no whiteout.
func whiteoutOf(key string) (target string, opaque, is bool) {
	dir, name := path.Split(key)
	if !strings.HasPrefix(name, whiteoutPrefix) || !fs.ValidPath(key) {
		return "", false, false
	}
	if name == opaqueWhiteout {
		return strings.TrimSuffix(dir, "/"), true, true
	}
	name = strings.TrimPrefix(name, whiteoutPrefix)
	if name == "" || name == "." || name == ".." || strings.HasPrefix(name, whiteoutPrefix) {
		return "", false, false
	}
	return dir + name, false, true
}
