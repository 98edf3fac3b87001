package controlplane

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestDenied(t *testing.T) {
	jobs := schema.GroupResource{Group: "batch", Resource: "jobs"}
	webhook := &apierrors.StatusError{ErrStatus: metav1.Status{Code: 400, Message: `admission webhook "limits.example.org" denied the request`}}
	for _, err := range []error{
		webhook, fmt.Errorf("create a Job: %w", webhook), apierrors.NewForbidden(jobs, "a", errors.New("exceeded quota")),
		apierrors.NewInvalid(schema.GroupKind{Kind: "Job"}, "a", nil), apierrors.NewInternalError(errors.New("failed calling webhook")),
	} {
		require.True(t, Denied(err), "%v", err)
	}
	for _, err := range []error{
		nil, errors.New("no route to host"), apierrors.NewNotFound(jobs, "a"), apierrors.NewConflict(jobs, "a", nil), apierrors.NewAlreadyExists(jobs, "a"),
		apierrors.NewUnauthorized("it has expired"), apierrors.NewTooManyRequests("later", 1), apierrors.NewServiceUnavailable("etcd"), apierrors.NewInternalError(errors.New("etcdserver: request timed out")), apierrors.NewTimeoutError("slow", 1),
	} {
		require.False(t, Denied(err), "%v", err)
	}
}
