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
	// Modified is when it last changed, according to the source.
	Modified time.Time
	// Flaw says why it cannot be fetched although it is listed, such as "is a
	// symbolic link".
	Flaw string
	// Whole: its server gives no ranges of it, as Stat has found out.
	Whole bool
}

// Same reports whether o and b have the same content, judging by size, version and ETag,
// or, if they have no ETags, by size, version and time.
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

// End returns the offset of the first byte after the span.
func (s Span) End() int64 { return s.Offset + s.Length }

// Stream is the content of an object, or of a span of it.
type Stream struct {
	Body io.ReadCloser
	// Size is the size of the whole object, from the answer.
	Size int64
	// Sums are the answer's checksums of the whole object.
	Sums Sums
}

// Store is where objects come from. Its errors are those of the source; Classify
// classifies them. It reacts to the end of a context, or announces with Calling what does not.
type Store interface {
	// List calls each with every object of the source, in no particular order, and stops
	// with each's error if there is one.
	List(ctx context.Context, each func(Object) error) error
	// Stat returns an object as it is now, with its checksums.
	Stat(ctx context.Context, key, version string) (Object, Sums, error)
	// Open begins to read a span of an object, or all of it if the span covers it, and
	// fails with ErrChanged if it no longer has that ETag.
	Open(ctx context.Context, object Object, part Span) (Stream, error)
	// Parts returns the sizes of the n parts in which an object was uploaded, in order;
	// nil if the source does not say.
	Parts(ctx context.Context, object Object, n int) ([]int64, error)
}

// Revised is a Store whose objects are all of one revision, which has a name.
type Revised interface {
	// Revision returns the name after List; empty if there is none.
	Revision() string
}

// Packed is a Revised store that has some of its objects in archives, which are fetched
// into a directory and unpacked there before it can be listed.
type Packed interface {
	Revised
	// Resolve finds out what Revision is.
	Resolve(ctx context.Context) error
	// Archives is the Store of the archives that the directory lacks; nil if it lacks none.
	Archives(dir *os.Root) (Store, error)
	// Unpack makes the archives in the directory ready to be listed and read.
	Unpack(ctx context.Context, dir *os.Root) error
}

// NewSection returns a reader of a span.
func NewSection(file io.ReaderAt, s Span) *io.SectionReader {
	return io.NewSectionReader(file, s.Offset, s.Length)
}
