// Package store is what every source of objects is to the loader: objects and spans of
// them, how their content is verified, what errors mean, and when a server has stalled.
package store

import (
	"context"
	"io"
	"time"
)

// ControlDir is the directory in the destination that belongs to fetch.
const ControlDir = ".flexlvm"

// Object is one thing that a source holds.
type Object struct {
	// Key is its full name in the source.
	Key string
	// Path is where it goes, relative to the destination, with slashes.
	Path string
	// Size in bytes.
	Size int64
	// ETag names the content, without quotes. Empty where the source has none.
	ETag string
	// Version is set where one version was asked for.
	Version string
	// Modified is when the source says that it was changed last.
	Modified time.Time
	// Flaw says why it cannot be fetched although it is listed, such as "is a
	// symbolic link".
	Flaw string
}

// Same reports whether a and b are the same content, as far as names of content
// tell. Without ETags it cannot be known, and the answer is the size's and the
// time's.
func (o Object) Same(b Object) bool {
	if o.Size != b.Size || o.Version != b.Version {
		return false
	}
	if o.ETag == "" && b.ETag == "" {
		// Listings tell milliseconds, headers do not.
		return o.Modified.Truncate(time.Second).Equal(b.Modified.Truncate(time.Second))
	}
	return o.ETag == b.ETag
}

// Span is a range of an object's bytes.
type Span struct {
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
}

// End is the first byte after the span.
func (s Span) End() int64 { return s.Offset + s.Length }

// Stream is the content of an object, or a span of it, on its way.
type Stream struct {
	Body io.ReadCloser
	// Size is that of the whole object, as the answer has it.
	Size int64
	// Sums are what the answer tells of the whole object.
	Sums Sums
}

// Store is where objects come from. Its errors are those of the source;
// classify tells what they mean.
type Store interface {
	// List calls each with every object of the source, in no promised order, and
	// ends with each's error if there is one.
	List(ctx context.Context, each func(Object) error) error
	// Stat asks what an object is now, with its checksums.
	Stat(ctx context.Context, key, version string) (Object, Sums, error)
	// Open begins to read a span of an object, or all of it if the span covers
	// it, and fails with errChanged if it is not the one with that ETag any more.
	Open(ctx context.Context, object Object, part Span) (Stream, error)
	// Parts tells the sizes of the n parts in which an object was uploaded, in order;
	// nil where the source does not tell.
	Parts(ctx context.Context, object Object, n int) ([]int64, error)
}

// NewSection is what a span holds.
func NewSection(file io.ReaderAt, s Span) *io.SectionReader {
	return io.NewSectionReader(file, s.Offset, s.Length)
}
