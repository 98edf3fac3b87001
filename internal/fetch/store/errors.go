package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sys/unix"
)

var (
	// ErrChanged: the object is no longer the one that was listed.
	ErrChanged = errors.New("the object changed while it was fetched")
	// ErrStalled: bytes arrived or were sent too slowly, or not at all.
	ErrStalled = errors.New("the server stalled")
	// ErrGone: the object no longer exists.
	ErrGone = errors.New("the object does not exist")
	// ErrNoCredentials: no credentials were found in any of the usual places.
	ErrNoCredentials = errors.New("no credentials")
	// ErrInTheWay: something that fetch did not create is at the path of a file or a directory.
	ErrInTheWay = errors.New("is in the way")
	// ErrWrongSum: the same content arrived twice and does not match the source's checksum, or the
	// source provides no checksum and one is required.
	ErrWrongSum = errors.New("the source's checksum cannot be relied on")
	// ErrUnreadable: the program's user may not read a file of the directory.
	ErrUnreadable = errors.New("it cannot be read")
	// ErrDowngrade: a response over https redirects to a URL without it.
	ErrDowngrade = errors.New("redirect from https to http is not followed")
	// ErrConflict: an upload would overwrite what somebody else has written.
	ErrConflict = errors.New("the object was changed since it was fetched")
)

// HTTPError is an unsuccessful response of a server.
type HTTPError struct {
	Status int
	Host   string
	// Message is the server's explanation, if it sent one.
	Message string
}

// Error includes the server's message, without control characters, which a terminal might interpret.
func (e *HTTPError) Error() string {
	text := fmt.Sprintf("%s answers %d %s", e.Host, e.Status, http.StatusText(e.Status))
	if e.Message != "" {
		text += ": " + e.Message
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// WithAdvice adds denied to the error of a server that denies access, and missing to that of a server that has no
// such object, unless missing is empty.
func WithAdvice(err error, denied, missing string) error {
	var e *HTTPError
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden:
		return fmt.Errorf("%w (%s)", err, denied)
	case e.Status == http.StatusNotFound && missing != "":
		return fmt.Errorf("%s: %w", missing, err)
	}
	return err
}

// Class is the meaning of an error for its object.
type Class int

const (
	// Transient: a retry may succeed.
	Transient Class = iota
	// Changed: a retry may succeed after the object was read again by Stat.
	Changed
	// Gone: the object does not exist.
	Gone
	// Denied: this object cannot be read; others may be.
	Denied
	// Fatal: no object can be read, or nothing can be written.
	Fatal
)

// Codes classifies the S3 error codes whose class the HTTP status does not determine.
var Codes = map[string]Class{
	"InvalidAccessKeyId":           Fatal,
	"SignatureDoesNotMatch":        Fatal,
	"AuthorizationHeaderMalformed": Fatal,
	"InvalidToken":                 Fatal,
	"ExpiredToken":                 Fatal,
	"AccountProblem":               Fatal,
	"AllAccessDisabled":            Fatal,
	"RequestTimeTooSkewed":         Fatal,
	"NoSuchBucket":                 Fatal,
	"InvalidBucketName":            Fatal,
	"PermanentRedirect":            Fatal,
	"InvalidRegion":                Fatal,
	"NoSuchKey":                    Gone,
	"NoSuchVersion":                Gone,
	"PreconditionFailed":           Changed,
	"InvalidRange":                 Changed,
	"SlowDown":                     Transient,
	"SlowDownRead":                 Transient,
	"RequestTimeout":               Transient,
	"Throttling":                   Transient,
	"ThrottlingException":          Transient,
	"InternalError":                Transient,
}

// local are the errors of the destination's file system that a retry does not fix.
var local = []unix.Errno{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EACCES, unix.EPERM, unix.EIO, unix.EFBIG, unix.EMFILE, unix.ENFILE,
	unix.ENOTDIR, unix.EEXIST, unix.EINVAL, unix.ELOOP, unix.ENAMETOOLONG,
	// A file system or its disk is damaged.
	unix.EUCLEAN, unix.EBADMSG, unix.ENODATA, unix.EREMOTEIO, unix.ENXIO}

// sourceError is an error of a file system that is the source.
type sourceError struct{ error }

func (e sourceError) Unwrap() error { return e.error }

// FromSource marks an error as one of a file system that is the source. Such an error concerns neither
// the destination nor, in general, other files. A file server may be unreachable for a while.
func FromSource(err error) error {
	if err == nil {
		return nil
	}
	return sourceError{err}
}

// Classify returns the class of err.
func Classify(err error) Class {
	var response minio.ErrorResponse
	var answer *HTTPError
	var final *Error
	var certificate *tls.CertificateVerificationError
	var source sourceError
	var network *net.OpError
	switch {
	case errors.Is(err, ErrChanged):
		return Changed
	case errors.Is(err, ErrGone):
		return Gone
	case errors.As(err, &final) && !final.Retryable, errors.Is(err, ErrNoCredentials), errors.As(err, &certificate):
		return Fatal
	case errors.Is(err, ErrInTheWay), errors.Is(err, ErrUnreadable), errors.Is(err, ErrWrongSum), errors.Is(err, ErrConflict), errors.Is(err, ErrDowngrade):
		return Denied
	case errors.As(err, &source):
		return Transient
	case errors.As(err, &response):
		return classifyResponse(response)
	case errors.As(err, &answer):
		return classifyStatus(answer.Status)
	case errors.As(err, &network):
		// Its errno may be one of local: connect fails with EPERM or EACCES if a firewall rejects packets, as for a
		// service that has no endpoints at the moment.
		return Transient
	}
	for _, errno := range local {
		if errors.Is(err, errno) {
			return Fatal
		}
	}
	return Transient
}

func classifyResponse(r minio.ErrorResponse) Class {
	if c, known := Codes[r.Code]; known {
		return c
	}
	return classifyStatus(r.StatusCode)
}

func classifyStatus(status int) Class {
	switch {
	case status == http.StatusNotFound:
		return Gone
	case status == http.StatusPreconditionFailed, status == http.StatusRequestedRangeNotSatisfiable:
		return Changed
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests:
		return Transient
	case status >= 400 && status < 500, status == http.StatusNotImplemented:
		return Denied
	}
	return Transient
}

// Throttled reports whether the source asks for fewer requests.
func Throttled(err error) bool {
	var r minio.ErrorResponse
	var answer *HTTPError
	status := 0
	if errors.As(err, &r) {
		status = r.StatusCode
	} else if errors.As(err, &answer) {
		status = answer.Status
	}
	return status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests
}

// Bounds of the pause before an attempt.
const (
	minBackoff = 200 * time.Millisecond
	MaxBackoff = 20 * time.Second
)

// BackoffDelay returns how long to wait before attempt n (the second is 1). It doubles each
// time, and random, from 0 to 1, spreads simultaneous failures over its second half.
func BackoffDelay(n int, random float64) time.Duration {
	d := MaxBackoff
	if n < 8 {
		d = min(minBackoff<<(n-1), MaxBackoff)
	}
	return d/2 + time.Duration(random*float64(d/2))
}

// Wait waits for d, or until ctx ends.
func Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// Retry calls try until it succeeds, fails permanently, or has failed attempts times.
func Retry(ctx context.Context, attempts int, try func(context.Context) error) error {
	for n := 1; ; n++ {
		err := try(ctx)
		if err == nil || context.Cause(ctx) != nil || Classify(err) != Transient || n >= attempts {
			return err
		}
		if err := Wait(ctx, BackoffDelay(n, rand.Float64())); err != nil {
			return err
		}
	}
}

// Error is the error of a run.
type Error struct {
	// Retryable: the same call may succeed later.
	Retryable bool
	// Usage: the call itself is invalid.
	Usage bool
	Err   error
}

// Usage returns the error of an invalid call.
func Usage(err error) *Error { return &Error{Usage: true, Err: err} }

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Failure returns an Error with this cause.
func Failure(err error, retryable bool) *Error { return &Error{Retryable: retryable, Err: err} }
