// Package store is the loader's interface to all sources: objects and spans of them, how
// their content is verified, what errors mean, and when a server has stalled.
package store

import (
	"context"
	"io"
	"os"
	"time"
)

// ControlDir is the directory in the destination that belongs to fetch.
const ControlDir = ".flexlvm"

// Object is one object of a source.
type Object struct {
	// Key is its full name in the source.
	Key string
	// Path is its path relative to the destination, with slashes.
	Path string
	// Size in bytes.
	Size int64
	// ETag identifies the content, without quotes. It is empty if the source has none.
	ETag string
	// Version is set if one version was requested.
	Version string
	// Modified is when it last changed, according to the source.
	Modified time.Time
	// Unfetchable is why it cannot be fetched although it is listed, such as "is a symbolic link".
	Unfetchable string
	// NoRanges: its server serves no ranges of it, as Stat has found out.
	NoRanges bool
}

// Same reports whether o and b have the same content, judging by size, version and ETag,
// or, if they have no ETags, by size, version and time.
func (o Object) Same(b Object) bool {
	if o.Size != b.Size || o.Version != b.Version {
		return false
	}
	if o.ETag == "" && b.ETag == "" {
		// Listings have milliseconds, headers do not.
		return o.Modified.Truncate(time.Second).Equal(b.Modified.Truncate(time.Second))
	}
	return o.ETag == b.ETag
}

// Span is a range of an object's bytes.
type Span struct {
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
}

// End returns the offset of the first byte after the span.
func (s Span) End() int64 { return s.Offset + s.Length }

// Stream is the content of an object, or of a span of it.
type Stream struct {
	Body io.ReadCloser
	// Size is the size of the whole object, from the response.
	Size int64
	// Sums are the response's checksums of the whole object.
	Sums Sums
}

// Store reads the objects of a source. Classify classifies its errors. Its methods return when their
// context ends, or announce calls that do not with TrackCall.
type Store interface {
	// List calls each with every object of the source, in no particular order, and stops at each's
	// first error.
	List(ctx context.Context, each func(Object) error) error
	// Stat returns the present state of an object, with its checksums.
	Stat(ctx context.Context, key, version string) (Object, Sums, error)
	// Open begins to read a span of an object, or all of it if the span covers it, and fails with
	// ErrChanged if the object no longer has that ETag.
	Open(ctx context.Context, object Object, part Span) (Stream, error)
	// Parts returns the sizes of the n parts in which an object was uploaded, in order; nil if they are
	// unknown.
	Parts(ctx context.Context, object Object, n int) ([]int64, error)
}

// Revisioned is a Store whose objects all belong to one revision, which has a name.
type Revisioned interface {
	// Revision returns the name after List; empty if there is none.
	Revision() string
}

// Archived is a Revisioned store that has some of its objects in archives, which are fetched into a
// directory and unpacked there before the store can be listed.
type Archived interface {
	Revisioned
	// Resolve determines the revision.
	Resolve(ctx context.Context) error
	// HasAny reports whether the source may have one of the wanted objects that are in no archive. It is false only if
	// the source answers that it has none of them. It is called after Resolve, and needs no archive.
	HasAny(ctx context.Context, wanted func(Object) bool) bool
	// Archives returns the Store of the archives that the directory lacks; nil if it lacks none.
	Archives(dir *os.Root) (Store, error)
	// Unpack makes the archives in the directory ready to be listed and read.
	Unpack(ctx context.Context, dir *os.Root) error
}

// NewSection returns a reader of a span.
func NewSection(file io.ReaderAt, s Span) *io.SectionReader {
	return io.NewSectionReader(file, s.Offset, s.Length)
}
