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

// Deadlines of the calls, far above their usual duration; kubelet's own are shorter. An unmount may have to
// write back gigabytes.
const (
	callDeadline    = 3 * time.Minute
	unmountDeadline = 5 * time.Minute
)

// interceptor intercepts all calls: it sets deadlines, logs, recovers from panics and converts errors.
type interceptor struct {
	log logrus.FieldLogger

	mu   sync.Mutex
	busy map[string]bool // keys of the calls in progress; see lockKey
}

// intercept is a grpc.UnaryServerInterceptor.
func (c *interceptor) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
	deadline := callDeadline
	if _, is := request.(*csi.NodeUnpublishVolumeRequest); is {
		deadline = unmountDeadline
	}
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, fmt.Errorf("the call did not end within %s: %w", deadline, context.DeadlineExceeded))
	defer cancel()
	start := time.Now()
	answer, err := c.serialized(ctx, request, call)
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

// serialized handles a call unless another call for the same directory is in progress. kubelet repeats calls that
// it got no response to, so calls would pile up behind one that hangs in the kernel.
func (c *interceptor) serialized(ctx context.Context, request any, call grpc.UnaryHandler) (answer any, err error) {
	if key := lockKey(request); key != "" {
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

func (c *interceptor) begin(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[key] {
		return false
	}
	c.busy[key] = true
	return true
}

func (c *interceptor) end(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, key)
}

// lockKey returns the key by which a call excludes others: the directory whose volume it changes, or the
// directory whose usage it reads, under another key so that it does not keep the volume from being unmounted.
// It is empty for all other calls.
func lockKey(request any) string {
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

// fieldsOf returns the fields of a request that may be logged: no secrets, and not all attributes.
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
