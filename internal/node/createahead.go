package node

import (
	"context"
	"errors"
	"time"

	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// CreateAhead creates a volume before its first mount, with its file system and its quota, as that mount would,
// and makes it ready. It calls wanted under the volume's lock, and stops with wanted's error. It leaves a
// ready volume alone.
//
// Zeroing a raw block volume may take hours. After every holdTime CreateAhead yields the volume's lock, for
// example to its first mount or to its release, and then calls wanted again.
//
// An encrypted volume is created by its first mount, which brings the key, and a copy by CreateCloneAhead.
func (e *Engine) CreateAhead(ctx context.Context, spec volume.Spec, wanted func(context.Context) error) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	if spec.Kind != volume.Claim || spec.CloneOf != "" || spec.Namespace == "" {
		return &volume.FieldError{Field: volume.OptionKind, Value: string(spec.Kind), Reason: "is not claim, or it is a copy, or the namespace is missing: only empty volumes of claims are created ahead"}
	}
	if spec.Layout == volume.Directory {
		return &volume.FieldError{Field: volume.OptionLayout, Value: string(spec.Layout), Reason: "is created by its first mount, not ahead of it"}
	}
	if spec.Encrypted {
		return noKeyErr(spec.Group, spec.Name)
	}
	yielding := *e
	yielding.yields = true
	for started := false; ; {
		err := yielding.createAheadStep(ctx, spec, wanted)
		switch {
		case errors.Is(err, errYielded):
			started = true
		case started && errors.Is(err, lock.ErrBusy) && ctx.Err() == nil: // its first mount continues the zeroing, and may be interrupted
		default:
			return err
		}
		if err := lock.Yield(ctx); err != nil {
			return err
		}
	}
}

// createAheadDeadline bounds mkfs in CreateAhead, which no caller waits for. Mounts alone would never format a device
// for which mkfs needs longer than a mount may take. Meanwhile mounts of the volume wait.
const createAheadDeadline = 10 * time.Minute

// createAheadStep creates a volume, or zeroes part of it (errYielded).
func (e *Engine) createAheadStep(ctx context.Context, spec volume.Spec, wanted func(context.Context) error) error {
	release, err := e.lockWithin(ctx, e.sourceLockTimeout, spec.Group, spec.Name)
	if err != nil {
		return err
	}
	defer release()
	if err := wanted(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, createAheadDeadline)
	defer cancel()
	f, err := e.findOrCreate(ctx, spec, luks.Key{})
	if err != nil || f.tags.State == volume.Ready {
		return err
	}
	if f.tags.FSType == volume.Raw {
		return e.recordMountable(ctx, f)
	}
	fs, err := e.withQuota(ctx, f, spec)
	if err != nil {
		return err
	}
	defer func() { _ = fs.Close() }()
	return e.recordMountable(ctx, f)
}
