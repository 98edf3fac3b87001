package ocistore

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/web"
)

func TestLayers(t *testing.T) {
	for name, c := range map[string]struct {
		mediaType   string
		annotations map[string]string
		key, pack   string
	}{
		"file":             {"application/octet-stream", map[string]string{ocispec.AnnotationTitle: "./a/b"}, "a/b", ""},
		"file of oras":     {ocispec.MediaTypeImageLayer, map[string]string{ocispec.AnnotationTitle: "a"}, "a", ""},
		"directory":        {ocispec.MediaTypeImageLayerGzip, map[string]string{ocispec.AnnotationTitle: "a", annotationUnpack: "true"}, "", packGzip},
		"image":            {ocispec.MediaTypeImageLayerZstd, nil, "", packZstd},
		"image of docker":  {"application/vnd.docker.image.rootfs.diff.tar.gzip", nil, "", packGzip},
		"ModelPack's tar":  {"application/vnd.cncf.model.weight.v1.tar", map[string]string{annotationPath: "m", ocispec.AnnotationTitle: "m"}, "", packNone},
		"ModelPack's file": {"application/vnd.cncf.model.doc.v1.raw", map[string]string{annotationPath: "docs/m", ocispec.AnnotationTitle: "m"}, "docs/m", ""},
	} {
		l, err := layerOf(ocispec.Descriptor{MediaType: c.mediaType, Digest: digest.FromString("x"), Size: 1, Annotations: c.annotations})
		require.NoError(t, err, name)
		require.Equal(t, c.pack, l.pack, name)
		if c.pack != "" {
			c.key = digest.FromString("x").Encoded()
		}
		require.Equal(t, c.key, l.Key, name)
		require.Empty(t, l.Unfetchable, name)
		require.NotEmpty(t, l.sums.SHA256)
	}
	l, err := layerOf(ocispec.Descriptor{MediaType: "a/b", Digest: digest.FromString("x"), Size: 1})
	require.NoError(t, err)
	require.Contains(t, l.Unfetchable, "no title")
	for _, d := range []digest.Digest{"", "sha256:00", "md5:d41d8cd98f00b204e9800998ecf8427e", digest.SHA512.FromString("x")} {
		_, err := layerOf(ocispec.Descriptor{MediaType: "a/b", Digest: d, Size: 1})
		require.Error(t, err, d)
	}
}

// Only an answer that a blob is missing shows that it is.
func TestHasAny(t *testing.T) {
	status := http.StatusNotFound
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(status)
		_, _ = w.Write([]byte("x"))
	}))
	defer server.Close()
	from, err := New(store.Source{Bucket: "registry/artifact:v1"}, Config{Endpoint: server.URL, Anonymous: true, Config: web.Config{Attempts: 1, Stall: time.Minute}})
	require.NoError(t, err)
	a := from.(*Artifact)
	for _, d := range []ocispec.Descriptor{
		{MediaType: "a/b", Annotations: map[string]string{ocispec.AnnotationTitle: "here"}},
		{MediaType: "a/b", Annotations: map[string]string{ocispec.AnnotationTitle: "late"}},
		{MediaType: ocispec.MediaTypeImageLayer},
		{MediaType: "a/b"},
	} {
		d.Digest, d.Size = digest.FromString("x"), 1
		l, err := layerOf(d)
		require.NoError(t, err)
		a.layers = append(a.layers, l)
	}
	wanted := func(o store.Object) bool { return o.Key != "here" }
	require.False(t, a.HasAny(t.Context(), wanted))
	require.Equal(t, 1, asked, "neither for what is here, nor for an archive, nor for what has no name")
	for _, status = range []int{http.StatusOK, http.StatusForbidden, http.StatusInternalServerError} {
		require.True(t, a.HasAny(t.Context(), wanted), status)
	}
	require.False(t, a.HasAny(t.Context(), func(store.Object) bool { return false }))
}

// Unpacking that is killed between any two of its steps is resumed, and only a whole archive has its name.
func TestUnpackingGoesOn(t *testing.T) {
	var packed, plain bytes.Buffer
	w := tar.NewWriter(&plain)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "a", Size: 5, Typeflag: tar.TypeReg}))
	_, err := w.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	z := gzip.NewWriter(&packed)
	_, err = z.Write(plain.Bytes())
	require.NoError(t, err)
	require.NoError(t, z.Close())
	l := layer{pack: packGzip, Object: store.Object{Key: "0123", Size: int64(packed.Len())}}
	for name, there := range map[string]map[string][]byte{
		"fetched":                   {"0123": packed.Bytes()},
		"killed while it unpacked":  {"0123": packed.Bytes(), ".unpacking": []byte("half")},
		"killed before the removal": {"0123": packed.Bytes(), "0123.tar": plain.Bytes()},
		"unpacked":                  {"0123.tar": plain.Bytes()},
		"of another revision":       {"0123": packed.Bytes(), "4567.tar": []byte("old")},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range there {
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), content, 0o600))
			}
			root, err := os.OpenRoot(dir)
			require.NoError(t, err)
			defer root.Close()
			a := &Artifact{layers: []layer{l}}
			archives, err := a.Archives(root)
			require.NoError(t, err)
			require.Equal(t, there["0123.tar"] == nil, archives != nil)
			require.NoFileExists(t, filepath.Join(dir, "4567.tar"))
			require.NoError(t, a.Unpack(t.Context(), root))
			var listed []string
			require.NoError(t, a.List(t.Context(), func(o store.Object) error { listed = append(listed, o.Key); return nil }))
			require.Equal(t, []string{"a"}, listed)
			require.FileExists(t, filepath.Join(dir, "0123.tar"))
		})
	}
}

// A file of git archive begins with a global header, which is not an entry.
func TestGlobalHeadersAreNoFiles(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "x.tar"))
	require.NoError(t, err)
	defer file.Close()
	w := tar.NewWriter(file)
	require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "0123"}}))
	require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 1, Mode: 0o600}))
	_, err = w.Write([]byte("1"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	_, err = file.Seek(0, io.SeekStart)
	require.NoError(t, err)
	found, err := (&archive{file}).members(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "a", found[0].Key)
	require.Empty(t, found[0].Unfetchable)
}

// Unpacking ends with its context.
func TestUnpackingEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write(make([]byte, 1<<20))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	require.ErrorIs(t, expand(ctx, &bytes.Buffer{}, &zipped, packGzip), context.Canceled)
}
