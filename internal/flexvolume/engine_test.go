package flexvolume

import (
	"context"
	"sync"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// fakeEngine records its calls and answers with do.
type fakeEngine struct {
	mu    sync.Mutex
	calls []engineCall
	do    func(context.Context) error
}

type engineCall struct {
	verb     string
	spec     volume.Spec
	target   string
	readOnly bool
	size     volume.Bytes
}

func (f *fakeEngine) record(ctx context.Context, c engineCall) error {
	f.mu.Lock()
	f.calls = append(f.calls, c)
	f.mu.Unlock()
	if f.do == nil {
		return nil
	}
	return f.do(ctx)
}

func (f *fakeEngine) Mount(ctx context.Context, spec volume.Spec, r node.MountRequest) error {
	return f.record(ctx, engineCall{verb: "mount", spec: spec, target: r.Target, readOnly: r.ReadOnly})
}

func (f *fakeEngine) Unmount(ctx context.Context, target string) error {
	return f.record(ctx, engineCall{verb: "unmount", target: target})
}

func (f *fakeEngine) Settle(ctx context.Context, g volume.Group, n volume.Name) error {
	return f.record(ctx, engineCall{verb: "settle", spec: volume.Spec{Group: g, Name: n}})
}

func (f *fakeEngine) Expand(ctx context.Context, spec volume.Spec, size volume.Bytes) error {
	return f.record(ctx, engineCall{verb: "expand", spec: spec, size: size})
}
