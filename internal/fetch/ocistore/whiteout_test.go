package ocistore

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// tarOf returns a tar of these entries. A name that ends in a slash is a directory, "name -> target" is a symbolic
// link, and the rest are empty files.
func tarOf(t *testing.T, entries ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, entry := range entries {
		name, target, link := strings.Cut(entry, " -> ")
		header := &tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeReg}
		switch {
		case link:
			header.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(name, "/"):
			header.Typeflag = tar.TypeDir
		}
		require.NoError(t, w.WriteHeader(header))
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

// unpackedOf returns the files that the layers hold together: their flaws, by path. An accepted file has none.
func unpackedOf(t *testing.T, descriptor ocispec.Descriptor, tars ...[]byte) map[string]string {
	t.Helper()
	dir, a := t.TempDir(), &Artifact{}
	for i, content := range tars {
		descriptor.Digest, descriptor.Size = digest.FromString(strconv.Itoa(i)), int64(len(content))
		l, err := layerOf(descriptor)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, l.Key), content, 0o600))
		a.layers = append(a.layers, l)
	}
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	require.NoError(t, a.Unpack(t.Context(), root))
	out := map[string]string{}
	require.NoError(t, a.List(t.Context(), func(o store.Object) error { out[o.Key] = o.Unfetchable; return nil }))
	return out
}

// A replica of an image holds no file that a later layer of the image has deleted.
func TestLayersDeleteFilesOfEarlierOnes(t *testing.T) {
	const link, invalid = "it is a symbolic link", "it has the name of a whiteout, which deletes files of other layers"
	lower := []string{"./", "m/", "m/a", "m/b", "m/d/", "m/d/x", "m/d/y/z", "md", "n"}
	for name, c := range map[string]struct {
		upper []string
		want  map[string]string
	}{
		"nothing":                     {[]string{"o", "m/a"}, map[string]string{"m/a": "", "m/b": "", "m/d/x": "", "m/d/y/z": "", "md": "", "n": "", "o": ""}},
		"a file":                      {[]string{"m/", "m/.wh.a"}, map[string]string{"m/b": "", "m/d/x": "", "m/d/y/z": "", "md": "", "n": ""}},
		"a directory":                 {[]string{"./m/.wh.d"}, map[string]string{"m/a": "", "m/b": "", "md": "", "n": ""}},
		"a directory that comes back": {[]string{"m/.wh.d", "m/d/new"}, map[string]string{"m/a": "", "m/b": "", "m/d/new": "", "md": "", "n": ""}},
		"all of a directory":          {[]string{"m/d/new", "m/d/.wh..wh..opq"}, map[string]string{"m/a": "", "m/b": "", "m/d/new": "", "md": "", "n": ""}},
		"all":                         {[]string{".wh..wh..opq", "o"}, map[string]string{"o": ""}},
		"a file for a directory":      {[]string{"m"}, map[string]string{"m": "", "md": "", "n": ""}},
		"a link for a directory":      {[]string{"m/d -> /x"}, map[string]string{"m/a": "", "m/b": "", "m/d": link, "md": "", "n": ""}},
		"a directory for a file":      {[]string{"n/", "md/x/"}, map[string]string{"m/a": "", "m/b": "", "m/d/x": "", "m/d/y/z": "", "md": ""}},
		"of no known meaning": {[]string{"m/.wh.", "m/.wh..", "m/.wh...", "m/.wh..wh.plnk", "m//.wh.a", "../.wh.m", "/m/.wh.a"}, map[string]string{
			"m/a": "", "m/b": "", "m/d/x": "", "m/d/y/z": "", "md": "", "n": "",
			"m/.wh.": invalid, "m/.wh..": invalid, "m/.wh...": invalid, "m/.wh..wh.plnk": invalid, "m//.wh.a": invalid, "../.wh.m": invalid, "/m/.wh.a": invalid,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			image := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer}
			require.Equal(t, c.want, unpackedOf(t, image, tarOf(t, lower...), tarOf(t, c.upper...)))
		})
	}
	// A link is ignored if a later layer deletes it.
	require.Equal(t, map[string]string{"b": ""}, unpackedOf(t, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer},
		tarOf(t, "a -> /x", "b", "c"), tarOf(t, ".wh.a"), tarOf(t, ".wh.c")))
}

// A packed directory is not a layer of an image, so a file with the name of a whiteout deletes nothing there.
func TestDirectoriesHaveNoWhiteouts(t *testing.T) {
	for name, d := range map[string]ocispec.Descriptor{
		"oras":      {MediaType: ocispec.MediaTypeImageLayer, Annotations: map[string]string{ocispec.AnnotationTitle: "m", annotationUnpack: "true"}},
		"ModelPack": {MediaType: "application/vnd.cncf.model.weight.v1.tar"},
	} {
		t.Run(name, func(t *testing.T) {
			got := unpackedOf(t, d, tarOf(t, "m/", "m/a", "n"), tarOf(t, "n/", "m/.wh.a"))
			require.Contains(t, got["m/.wh.a"], "whiteout")
			delete(got, "m/.wh.a")
			require.Equal(t, map[string]string{"m/a": "", "n": ""}, got)
		})
	}
}
