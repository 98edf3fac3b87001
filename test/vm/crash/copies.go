//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/flexlvm/flexlvm/internal/freeze"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// taken promises a snapshot or a copy with the files that its source is promised to have at that moment.
func taken(p promises, s volume.Spec, size volume.Bytes) {
	p[s.Name] = promise{spec: s, state: volume.Ready, size: size, files: maps.Clone(p[s.CloneOf].files)}
}

// stillWanted is for a caller that has not given the volume up.
func stillWanted(context.Context) error { return nil }

// snapshotStep takes a snapshot of all that was written before.
func snapshotStep(s volume.Spec) step {
	return step{
		name: fmt.Sprintf("snapshot %s of %s", s.Name, s.CloneOf),
		do: func(w *world) error {
			ctx, cancel := bounded(w)
			defer cancel()
			_, err := w.engine.MakeSnapshot(ctx, node.SnapshotRequest{Spec: s}, stillWanted)
			return err
		},
		then: func(p promises) { taken(p, s, p[s.CloneOf].size) },
	}
}

// groupStep takes snapshots of the same instant while their sources are in use, or one after another where the kernel
// cannot do that.
func groupStep(sources []volume.Spec, snapshots ...volume.Spec) step {
	var names, of []string
	var requests []node.SnapshotRequest
	for _, s := range snapshots {
		names, of = append(names, string(s.Name)), append(of, string(s.CloneOf))
		requests = append(requests, node.SnapshotRequest{Spec: s})
	}
	return step{
		name: fmt.Sprintf("snapshot %s of %s together", strings.Join(names, " and "), strings.Join(of, " and ")),
		do: func(w *world) error {
			for _, s := range sources {
				if err := w.mount(w.engine, s); err != nil {
					return err
				}
			}
			ctx, cancel := bounded(w)
			defer cancel()
			if freeze.CheckSnapshots() == nil {
				_, err := w.engine.MakeSnapshotGroup(ctx, requests, stillWanted)
				return err
			}
			for _, r := range requests {
				if _, err := w.engine.MakeSnapshot(ctx, r, stillWanted); err != nil {
					return err
				}
			}
			return nil
		},
		then: func(p promises) {
			for _, s := range snapshots {
				taken(p, s, p[s.CloneOf].size)
			}
		},
	}
}

// fullCopyStep creates a volume as a full copy of a snapshot. If a pod can mount the volume before that call, as
// after a power cut, the volume must be whole, and it is checked as such.
func fullCopyStep(s volume.Spec) step {
	return step{
		name: fmt.Sprintf("copy %s to %s", s.CloneOf, s.Name),
		do: func(w *world) error {
			err := w.mount(w.engine, s)
			// The CSI driver returns only the text of the error.
			if err == nil || !strings.Contains(err.Error(), node.ErrNotCopied.Error()) {
				return err
			}
			ctx, cancel := bounded(w)
			defer cancel()
			if err := w.engine.CreateCloneAhead(ctx, s); err != nil {
				return err
			}
			return w.mount(w.engine, s)
		},
		then: func(p promises) { taken(p, s, s.Size) },
	}
}
