package controlplane

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Denied reports whether the API server or an admission webhook has rejected a request because of its
// content, so that a person has to know. The API server responds with 400 if a webhook rejects without
// a code, and with 500 if it cannot call a webhook; as 500 also means many transient errors, the
// message decides there.
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
