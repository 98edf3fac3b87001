package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sys/unix"
)

var (
	// errChanged: the object is not the one any more that was listed.
	errChanged = errors.New("the object changed while it was fetched")
	// errStalled: bytes came or went too slowly, or not at all.
	errStalled = errors.New("the server stalled")
	// errGone: the object is not there any more.
	errGone = errors.New("the object does not exist")
)

// class is what an error means for the object that it befell.
type class int

const (
	// transient: the same may succeed when it is tried again.
	transient class = iota
	// changed: it may succeed once the object was looked at anew.
	changed
	// gone: the object is not there.
	gone
	// denied: this object cannot be had; others may.
	denied
	// fatal: no object can be had, or no byte kept.
	fatal
)

// codes of S3 that are not told by their HTTP status alone.
var codes = map[string]class{
	"InvalidAccessKeyId":           fatal,
	"SignatureDoesNotMatch":        fatal,
	"AuthorizationHeaderMalformed": fatal,
	"InvalidToken":                 fatal,
	"ExpiredToken":                 fatal,
	"AccountProblem":               fatal,
	"AllAccessDisabled":            fatal,
	"RequestTimeTooSkewed":         fatal,
	"NoSuchBucket":                 fatal,
	"InvalidBucketName":            fatal,
	"PermanentRedirect":            fatal,
	"InvalidRegion":                fatal,
	"NoSuchKey":                    gone,
	"NoSuchVersion":                gone,
	"PreconditionFailed":           changed,
	"InvalidRange":                 changed,
	"SlowDown":                     transient,
	"SlowDownRead":                 transient,
	"RequestTimeout":               transient,
	"Throttling":                   transient,
	"ThrottlingException":          transient,
	"InternalError":                transient,
}

// local are the errors of the destination that no trying again mends.
var local = []unix.Errno{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EACCES, unix.EPERM, unix.EIO, unix.EFBIG, unix.EMFILE, unix.ENFILE,
	unix.ENOTDIR, unix.EEXIST, unix.EINVAL, unix.ELOOP, unix.ENAMETOOLONG}

// classify tells what err means.
func classify(err error) class {
	var response minio.ErrorResponse
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.Is(err, errChanged):
		return changed
	case errors.Is(err, errGone):
		return gone
	case errors.Is(err, errNoCredentials), errors.As(err, &certificate):
		return fatal
	case errors.Is(err, errInTheWay), errors.Is(err, errUnreadable):
		return denied
	case errors.As(err, &response):
		return classifyResponse(response)
	}
	for _, errno := range local {
		if errors.Is(err, errno) {
			return fatal
		}
	}
	return transient
}

func classifyResponse(r minio.ErrorResponse) class {
	if c, known := codes[r.Code]; known {
		return c
	}
	switch status := r.StatusCode; {
	case status == http.StatusNotFound:
		return gone
	case status == http.StatusPreconditionFailed, status == http.StatusRequestedRangeNotSatisfiable:
		return changed
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests:
		return transient
	case status >= 400 && status < 500, status == http.StatusNotImplemented:
		return denied
	}
	return transient
}

// throttled tells whether the source asks for fewer requests.
func throttled(err error) bool {
	var r minio.ErrorResponse
	return errors.As(err, &r) && (r.StatusCode == http.StatusServiceUnavailable || r.StatusCode == http.StatusTooManyRequests)
}

// Bounds of the pause before an attempt.
const (
	leastPause = 200 * time.Millisecond
	mostPause  = 20 * time.Second
)

// pause is how long to wait before attempt n (the second is 1); it doubles, and
// random, from 0 to 1, spreads those who fail together over its second half.
func pause(n int, random float64) time.Duration {
	d := mostPause
	if n < 8 {
		d = min(leastPause<<(n-1), mostPause)
	}
	return d/2 + time.Duration(random*float64(d/2))
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// Error is how a run fails.
type Error struct {
	// Retryable: the same call may succeed later.
	Retryable bool
	// Usage: the call itself is wrong.
	Usage bool
	err   error
}

// usage makes the error of a call that is wrong in itself.
func usage(err error) *Error { return &Error{Usage: true, err: err} }

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// Failure makes an error of the program that uses the package.
func Failure(err error, retryable bool) *Error { return &Error{Retryable: retryable, err: err} }

// failed makes the error of a run from its cause.
func failed(err error) error {
	var already *Error
	if err == nil || errors.As(err, &already) {
		return err
	}
	var told *errNoRoom
	if (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) && !errors.As(err, &told) {
		err = fmt.Errorf("the destination has no room left; make the volume larger or select less: %w", err)
	}
	retry := classify(err) == transient && !errors.Is(err, errChecksum) || classify(err) == changed
	return &Error{Retryable: retry, err: err}
}
