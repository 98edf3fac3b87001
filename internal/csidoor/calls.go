package csidoor

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime/debug"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flexlvm/flexlvm/internal/pv"
)

// Deadlines of the calls, far above what they take; kubelet has shorter ones. An unmount may
// have to write gigabytes back.
const (
	callDeadline    = 3 * time.Minute
	unmountDeadline = 5 * time.Minute
)

// calls bounds, logs and repairs what all calls have in common.
type calls struct {
	log logrus.FieldLogger

	mu   sync.Mutex
	busy map[string]bool // by what only one call may be about
}

// intercept is a grpc.UnaryServerInterceptor.
func (c *calls) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
	deadline := callDeadline
	if _, is := request.(*csi.NodeUnpublishVolumeRequest); is {
		deadline = unmountDeadline
	}
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, fmt.Errorf("the call did not end within %s: %w", deadline, context.DeadlineExceeded))
	defer cancel()
	start := time.Now()
	answer, err := c.alone(ctx, request, call)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	fields := fieldsOf(request)
	line := c.log.WithFields(fields).WithField("call", path.Base(info.FullMethod)).WithField("took", time.Since(start).Round(10*time.Microsecond).String())
	switch {
	case err != nil:
		line.WithError(err).WithField("code", codeOf(err).String()).Error("call failed")
	case fields["target"] != nil:
		line.Info("call succeeded")
	default:
		line.Debug("call succeeded")
	}
	return answer, statusOf(err)
}

// alone carries out a call unless one about the same directory is at work: kubelet repeats
// what it has no answer to, and a call that hangs in the kernel would be joined by more and
// more.
func (c *calls) alone(ctx context.Context, request any, call grpc.UnaryHandler) (answer any, err error) {
	if key := exclusive(request); key != "" {
		if !c.begin(key) {
			return nil, status.Errorf(codes.Aborted, "an earlier call about %s is still at work", key)
		}
		defer c.end(key)
	}
	defer func() {
		if p := recover(); p != nil {
			c.log.Errorf("panic: %v\n%s", p, debug.Stack())
			answer, err = nil, status.Error(codes.Internal, "internal error in the CSI driver; its log holds the details, please report them")
		}
	}()
	return call(ctx, request)
}

func (c *calls) begin(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[key] {
		return false
	}
	c.busy[key] = true
	return true
}

func (c *calls) end(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, key)
}

// exclusive returns what only one call at a time may be about: the directory whose volume a call
// changes, or whose file system is asked for its usage, which does not keep it from being unmounted.
// Empty for all others.
func exclusive(request any) string {
	switch r := request.(type) {
	case *csi.NodePublishVolumeRequest:
		return r.GetTargetPath()
	case *csi.NodeUnpublishVolumeRequest:
		return r.GetTargetPath()
	case *csi.NodeExpandVolumeRequest:
		return r.GetVolumePath()
	case *csi.NodeGetVolumeStatsRequest:
		return "the usage of " + r.GetVolumePath()
	}
	return ""
}

// fieldsOf is what the log may say of a request: never a secret, nor all attributes.
func fieldsOf(request any) logrus.Fields {
	switch r := request.(type) {
	case *csi.NodePublishVolumeRequest:
		f := logrus.Fields{"volume": r.GetVolumeId(), "target": r.GetTargetPath(), "readOnly": r.GetReadonly(), "namespace": r.GetVolumeContext()[pv.AttributeNamespace]}
		if pod := r.GetVolumeContext()[keyPod]; pod != "" {
			f["pod"] = r.GetVolumeContext()[keyNamespace] + "/" + pod
		}
		return f
	case *csi.NodeUnpublishVolumeRequest:
		return logrus.Fields{"volume": r.GetVolumeId(), "target": r.GetTargetPath()}
	case *csi.NodeExpandVolumeRequest:
		return logrus.Fields{"volume": r.GetVolumeId(), "target": r.GetVolumePath(), "to": r.GetCapacityRange().GetRequiredBytes()}
	case *csi.NodeGetVolumeStatsRequest:
		return logrus.Fields{"volume": r.GetVolumeId()}
	case *csi.NodeGetVolumeHealthRequest:
		return logrus.Fields{"volume": r.GetVolumeId()}
	}
	return nil
}
