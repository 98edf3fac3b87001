package csidoor

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// maxMessage is the maximum length of a message in bytes: kubelet puts it into an event of at most 1 KiB, and
// into its own log.
const maxMessage = 4096

// codesOf maps the engine's errors to codes; the first match counts. After Unavailable, ResourceExhausted,
// DeadlineExceeded, Canceled or Aborted, kubelet assumes that the volume may be mounted and unmounts it later;
// after other codes it does not.
var codesOf = []struct {
	err  error
	code codes.Code
}{
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{context.Canceled, codes.Canceled},
	{lvm.ErrNoSpace, codes.ResourceExhausted},
	{node.ErrDamaged, codes.DataLoss},
	{node.ErrLost, codes.DataLoss},
	{node.ErrNoReplica, codes.Unavailable},
	{luks.ErrWrongKey, codes.Unauthenticated},
	{node.ErrNoKey, codes.InvalidArgument},
	{node.ErrRefused, codes.PermissionDenied},
	{node.ErrNotMounted, codes.NotFound},
	{node.ErrInUse, codes.FailedPrecondition},
	{node.ErrNotCopied, codes.FailedPrecondition},
	{lvm.ErrHasSnapshots, codes.FailedPrecondition},
	{mount.ErrBusy, codes.Unavailable},
	{luks.ErrBusy, codes.Unavailable},
	{lvm.ErrSuspended, codes.Unavailable},
	{lvm.ErrPartial, codes.Unavailable},
	{node.ErrConverted, codes.Unavailable},
	{lvm.ErrNoVolume, codes.NotFound},
	{lvm.ErrNoGroup, codes.FailedPrecondition},
	{lvm.ErrExported, codes.FailedPrecondition},
	{lvm.ErrNoPool, codes.FailedPrecondition},
}

// codeOf returns the code of an error.
func codeOf(err error) codes.Code {
	if s, is := status.FromError(err); is {
		return s.Code()
	}
	for _, c := range codesOf {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	var field *volume.FieldError
	var target *mount.TargetError
	switch {
	case errors.As(err, &field):
		return codes.InvalidArgument
	case errors.As(err, &target):
		return codes.FailedPrecondition
	}
	return codes.Internal
}

// growthError returns the error of an expansion as kubelet may see it. kubelet (1.37, pkg/volume/csi) gives
// four codes a special meaning: after FailedPrecondition it does not retry while any pod uses the volume,
// NotFound ends the expansion permanently, and after ResourceExhausted and Unavailable it may not report the
// failure on the claim, upon which the provisioner takes the growth back. The provisioner waits half a minute,
// so that calls that found something briefly busy are retried first. These codes become Internal, except for a
// volume that is not mounted, which kubelet has to know.
func growthError(err error) error {
	switch code := codeOf(err); {
	case errors.Is(err, node.ErrNotMounted):
		return err
	case slices.Contains([]codes.Code{codes.FailedPrecondition, codes.NotFound, codes.ResourceExhausted, codes.Unavailable}, code):
		return status.Error(codes.Internal, err.Error())
	}
	return err
}

// statusOf converts an error into the status that is returned to kubelet.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	message := err.Error()
	if s, is := status.FromError(err); is {
		message = s.Message()
	}
	return status.Error(codeOf(err), volume.Clip(message, maxMessage, " … (cut; all of it is in the log of the CSI driver)"))
}

// missingError returns the error for a required field that is not set.
func missingError(field string) error {
	return &volume.FieldError{Field: field, Reason: "is missing from the request"}
}
