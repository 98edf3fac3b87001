package ocistore

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Annotations of layers.
const (
	// annotationUnpack marks a layer with a title as a packed directory.
	annotationUnpack = "io.deis.oras.content.unpack"
	// annotationPath is the path of a layer's file in ModelPack.
	annotationPath = "org.cncf.model.filepath"
)

// Compressions of a tar.
const (
	packNone = "none"
	packGzip = "gzip"
	packZstd = "zstd"
)

// layer is a layer of a manifest: a file, or a tar of files.
type layer struct {
	store.Object
	digest digest.Digest
	sums   store.Sums
	pack   string // compression of a tar; empty for a file
	image  bool   // a tar of an image, which may delete files of the layers below it
}

// layerOf returns whether a layer is a file or a tar. A layer with a title is the file of that name,
// unless an annotation requests unpacking, or its type is a tar of ModelPack's.
func layerOf(d ocispec.Descriptor) (layer, error) {
	sum, err := sumOf(d.Digest)
	if err != nil || d.Size < 0 {
		return layer{}, fmt.Errorf("layer %s: it has no SHA-256 or no size", d.Digest)
	}
	l := layer{digest: d.Digest, sums: store.Sums{SHA256: base64.StdEncoding.EncodeToString(sum)}}
	l.Object = store.Object{Size: d.Size, ETag: d.Digest.String()}
	title := d.Annotations[ocispec.AnnotationTitle]
	pack, model := packOf(d.MediaType), strings.HasPrefix(d.MediaType, "application/vnd.cncf.model.")
	switch {
	case pack != "" && (title == "" || d.Annotations[annotationUnpack] == "true" || model):
		l.pack, l.Key, l.image = pack, d.Digest.Encoded(), title == "" && !model
	case d.Annotations[annotationPath] != "":
		l.Key = d.Annotations[annotationPath]
	case title != "":
		l.Key = title
	default:
		l.Key, l.Unfetchable = d.Digest.String(), fmt.Sprintf("the layer has no title, and its media type %q is not a tar", d.MediaType)
	}
	if l.pack == "" {
		l.Key = strings.TrimPrefix(l.Key, "./")
	}
	return l, nil
}

// packOf returns the compression of the tar that a media type names; empty if it names none.
func packOf(mediaType string) string {
	for end, pack := range map[string]string{
		".tar": packNone, ".tar+gzip": packGzip, ".tar.gzip": packGzip, ".tar+zstd": packZstd, ".tar.zstd": packZstd,
	} {
		if strings.HasSuffix(mediaType, end) {
			return pack
		}
	}
	return ""
}

// blobs is a Store of layers, by the SHA-256 of each.
type blobs struct {
	of     *Artifact
	layers map[string]layer
}

// List implements store.Store.
func (b blobs) List(_ context.Context, each func(store.Object) error) error {
	for _, l := range b.layers {
		if err := each(l.Object); err != nil {
			return err
		}
	}
	return nil
}

// Stat implements store.Store.
func (b blobs) Stat(ctx context.Context, key, _ string) (store.Object, store.Sums, error) {
	l, known := b.layers[key]
	if !known {
		return store.Object{}, store.Sums{}, store.ErrGone
	}
	return b.of.stat(ctx, l)
}

// Open implements store.Store.
func (b blobs) Open(ctx context.Context, o store.Object, part store.Span) (store.Stream, error) {
	l, known := b.layers[o.Key]
	if !known {
		return store.Stream{}, store.ErrGone
	}
	return b.of.open(ctx, l, part)
}

// Parts implements store.Store: blobs have none.
func (b blobs) Parts(context.Context, store.Object, int) ([]int64, error) { return nil, nil }

// stat asks whether the registry serves ranges of a blob. Its digest already identifies the content.
func (a *Artifact) stat(ctx context.Context, l layer) (store.Object, store.Sums, error) {
	ranges, size, err := a.client.Ranges(ctx, a.base+l.digest.String(), nil, l.Object)
	if err != nil {
		return store.Object{}, store.Sums{}, withAdvice(err)
	}
	if size >= 0 && size != l.Size {
		return store.Object{}, store.Sums{}, otherSize(l, size)
	}
	o := l.Object
	o.NoRanges = !ranges
	return o, l.sums, nil
}

func (a *Artifact) open(ctx context.Context, l layer, part store.Span) (store.Stream, error) {
	s, err := a.client.Open(ctx, a.base+l.digest.String(), nil, l.Object, part)
	if err != nil {
		return store.Stream{}, withAdvice(err)
	}
	if s.Size != l.Size {
		_ = s.Body.Close()
		return store.Stream{}, otherSize(l, s.Size)
	}
	s.Sums = l.sums
	return s, nil
}

func otherSize(l layer, size int64) error {
	return fmt.Errorf("%w: the blob has %d bytes, and the manifest says %d", store.ErrChanged, size, l.Size)
}

func notFound(err error) error {
	if errors.Is(err, errdef.ErrNotFound) {
		return fmt.Errorf("%w: %w", store.ErrGone, err)
	}
	return err
}
