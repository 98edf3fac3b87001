package csidoor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestCodes(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code codes.Code
	}{
		{lvm.ErrNoSpace, codes.ResourceExhausted},
		{lvm.ErrNoGroup, codes.FailedPrecondition},
		{lvm.ErrPartial, codes.Unavailable},
		{node.ErrConverted, codes.Unavailable},
		{fmt.Errorf("%w, and now: %w", node.ErrLost, lvm.ErrNoVolume), codes.DataLoss},
		{node.ErrDamaged, codes.DataLoss},
		{node.ErrRefused, codes.PermissionDenied},
		{node.ErrNoReplica, codes.Unavailable},
		{node.ErrNotMounted, codes.NotFound},
		{luks.ErrWrongKey, codes.Unauthenticated},
		{node.ErrNoKey, codes.InvalidArgument},
		{node.ErrInUse, codes.FailedPrecondition},
		{node.ErrNotCopied, codes.FailedPrecondition},
		{lvm.ErrHasSnapshots, codes.FailedPrecondition},
		{mount.ErrBusy, codes.Unavailable},
		{&mount.TargetError{Path: "/x", Reason: "is not empty"}, codes.FailedPrecondition},
		{&volume.FieldError{Field: "size", Reason: "is required"}, codes.InvalidArgument},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{status.Error(codes.Aborted, "at work"), codes.Aborted},
		{errors.New("anything else"), codes.Internal},
	} {
		err := statusOf(fmt.Errorf("mount: %w", tt.err))
		require.Equal(t, tt.code, status.Code(err), tt.err)
		require.Contains(t, status.Convert(err).Message(), "mount: ")
	}
	require.NoError(t, statusOf(nil))
}

// kubelet retries a growth after every error, and reports it on the claim.
func TestCodesOfAGrowth(t *testing.T) {
	for _, c := range codesOf {
		err := growthError(fmt.Errorf("grow: %w", c.err))
		require.ErrorContains(t, err, "grow: ")
		if errors.Is(c.err, node.ErrNotMounted) {
			require.Equal(t, codes.NotFound, codeOf(err))
			continue
		}
		require.NotContains(t, []codes.Code{codes.FailedPrecondition, codes.NotFound, codes.ResourceExhausted, codes.Unavailable}, codeOf(err), c.err)
	}
	require.Equal(t, codes.Internal, codeOf(growthError(&mount.TargetError{Path: "/x", Reason: "is not empty"})))
	require.Equal(t, codes.InvalidArgument, codeOf(growthError(&volume.FieldError{Field: "size", Reason: "is required"})))
	require.Equal(t, codes.DeadlineExceeded, codeOf(growthError(context.DeadlineExceeded)))
}

// kubelet puts the message into an event.
func TestLongMessageIsCut(t *testing.T) {
	message := status.Convert(statusOf(errors.New(strings.Repeat("ä", 5000)))).Message()
	require.Less(t, len(message), maxMessage+100)
	require.True(t, strings.HasPrefix(message, "ää"))
	require.NotContains(t, message, "\uFFFD")
	require.Contains(t, message, "cut")
}
