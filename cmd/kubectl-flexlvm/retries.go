package main

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// retries decides which failed requests are repeated, by a command that runs until something has ended.
type retries struct {
	note    func(text string) // prints a remark
	began   bool              // a request has succeeded
	failing bool              // the last request failed
	refused bool              // the last request was refused by the API server
}

// succeeded records that a request succeeded.
func (r *retries) succeeded() { r.began, r.failing, r.refused = true, false, false }

// permanentError returns the error of a request if retrying would not help. Otherwise it prints the error, once per
// outage, and returns nil: the API server may be unreachable for a moment, or has refused credentials that client-go
// renews for the next request.
func (r *retries) permanentError(ctx context.Context, err error) error {
	again := r.refused
	r.refused = isRefused(err)
	if !r.began || again && r.refused || ctx.Err() != nil {
		return err
	}
	if !r.failing {
		r.note(err.Error() + "; retrying")
	}
	r.failing = true
	return nil
}

// isRefused reports whether the API server refused a request and will refuse it again, unless client-go renews the
// credentials. NotFound does not count: while kubelet starts, it returns NotFound even for pods that run.
func isRefused(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code < http.StatusInternalServerError
	}
}
