package controlplane

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Denied reports whether the API server, or a webhook that it asks, has said no to a request for
// what is in it, so that a person has to know. A webhook that gives no code is answered with 400, and
// one that cannot be asked with 500, as is much that passes: there the text tells.
func Denied(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := int(status.Status().Code)
	passing := []int{http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests}
	if code == http.StatusInternalServerError {
		return strings.Contains(status.Status().Message, "failed calling webhook")
	}
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && !slices.Contains(passing, code)
}
