package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// targetState is the target's object for a file.
type targetState struct {
	object store.Object
	crc64  string // its CRC64NVME; empty if the server does not provide it
	same   bool   // it has the content of the file
}

// compareTarget returns the target's object, and whether it has the content of the file. If records of what was
// fetched may be missing, an object without checksums is read, once, so that nobody has to resolve a conflict that is none.
func (u *upload) compareTarget(ctx context.Context, o store.Object, key string, file pinned, from origin, crc, buf []byte) (targetState, error) {
	object, sums, err := u.remote.Verify(ctx, key, 0)
	there := targetState{object: object, crc64: sums.CRC64NVME}
	switch {
	case err != nil || object.Size != o.Size:
		return there, err
	case sums.CRC64NVME != "" || from != originUnknown || !u.isDoubtful():
		there.same = sums.CRC64NVME == store.Encode(crc)
		return there, nil
	case u.comparedBefore(o.Path) == comparison{o.ETag, object.ETag, false}:
		return there, nil
	}
	err = u.verify(ctx, o, key, file, crc, buf)
	if errors.Is(err, store.ErrChecksum) {
		u.compare(o, object, false)
		return there, nil
	}
	there.same = err == nil
	return there, err
}

// checkSend returns an error if a file must not be sent. there and err are the target's answer.
func (u *upload) checkSend(ctx context.Context, o store.Object, file pinned, from origin, there targetState, err error, buf []byte) error {
	if c := store.Classify(err); err != nil && (c == store.Fatal || c == store.Transient || from == originSent && c != store.Gone) {
		return fmt.Errorf("check the existing objects: %w", err)
	}
	if from == originUnknown {
		if err := u.checkReplace(o.Path, there.object, err); err != nil {
			return err
		}
	}
	if err != nil && store.Classify(err) == store.Gone {
		return nil
	}
	// A file that has grown since it was hashed would be sent as it was then: the object would be
	// replaced by the beginning of a file. If the object is itself a beginning of the file, as with a
	// log that is always written to, a longer beginning is better.
	checkErr := file.Check()
	if !errors.Is(checkErr, store.ErrChanged) || there.crc64 == "" || there.object.Size >= o.Size {
		return checkErr
	}
	crc := store.NewCRC64()
	if err := store.HashInto(ctx, crc, io.NewSectionReader(file, 0, there.object.Size), buf); err != nil {
		return err
	}
	if store.Encode(crc.Sum(nil)) == there.crc64 {
		return nil
	}
	return checkErr
}
