//go:build linux

package main

import (
	"fmt"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Each step begins in the state after a boot, so it mounts the volumes that it needs.

func mountStep(s volume.Spec) step {
	return step{
		name: fmt.Sprintf("mount %s", s.Name),
		do:   func(w *world) error { return w.mount(w.engine, s) },
		then: made(s),
	}
}

func mountBehindStep(s volume.Spec) step {
	return step{
		name: fmt.Sprintf("mount %s, not settled", s.Name),
		do:   func(w *world) error { return w.mount(w.behind, s) },
		then: made(s),
	}
}

func made(s volume.Spec) func(promises) {
	return func(p promises) {
		p[s.Name] = promise{spec: s, state: volume.Ready, size: s.Size, files: map[string]int64{}}
	}
}

func settleStep(s volume.Spec) step {
	return step{
		name: fmt.Sprintf("settle %s", s.Name),
		do:   func(w *world) error { return w.engine.Settle(w, s.Group, s.Name) },
		then: func(promises) {},
	}
}

func writeStep(s volume.Spec, file string, size int64) step {
	return step{
		name: fmt.Sprintf("write %s/%s", s.Name, file),
		do: func(w *world) error {
			if err := w.mount(w.behind, s); err != nil {
				return err
			}
			return w.write(s, file, size)
		},
		then: func(p promises) { p[s.Name].files[file] = size },
	}
}

func noiseStep(s volume.Spec) step {
	return step{
		name: fmt.Sprintf("write %s/noise, not fsynced", s.Name),
		do: func(w *world) error {
			if err := w.mount(w.engine, s); err != nil {
				return err
			}
			return w.noise(s.Name)
		},
		then: func(promises) {},
	}
}

func expandStep(s volume.Spec, size volume.Bytes) step {
	return step{
		name: fmt.Sprintf("expand %s", s.Name),
		do:   func(w *world) error { return w.expand(s, size) },
		then: func(p promises) { p.change(s.Name, func(v *promise) { v.size = size }) },
	}
}

func cloneStep(s volume.Spec) step {
	return step{
		name: fmt.Sprintf("clone %s of %s", s.Name, s.CloneOf),
		do: func(w *world) error {
			ctx, cancel := bounded(w)
			defer cancel()
			if err := w.engine.CreateCloneAhead(ctx, s); err != nil {
				return err
			}
			return w.mount(w.engine, s)
		},
		then: func(p promises) {
			made(s)(p)
			for file, size := range p[s.CloneOf].files {
				p[s.Name].files[file] = size
			}
		},
	}
}

func releaseStep(s volume.Spec, d volume.Disposal) step {
	return step{
		name: fmt.Sprintf("release %s", s.Name),
		do:   func(w *world) error { return w.release(s, d) },
		then: state(s, volume.Unreferenced),
	}
}

func undeleteStep(s volume.Spec) step {
	return step{
		name: fmt.Sprintf("undelete %s", s.Name),
		do: func(w *world) error {
			if err := w.restate(s, volume.Ready); err != nil {
				return err
			}
			return w.mount(w.engine, s)
		},
		then: state(s, volume.Ready),
	}
}

func retainStep(s volume.Spec) step {
	return step{
		name: fmt.Sprintf("retain %s", s.Name),
		do: func(w *world) error {
			if err := w.unmount(s); err != nil {
				return err
			}
			return w.restate(s, volume.Retained)
		},
		then: state(s, volume.Retained),
	}
}

func forgetStep(s volume.Spec) step {
	return step{
		name: fmt.Sprintf("forget %s", s.Name),
		do:   func(w *world) error { return w.restate(s, volume.Unreferenced) },
		then: state(s, volume.Unreferenced),
	}
}

func state(s volume.Spec, to volume.State) func(promises) {
	return func(p promises) { p.change(s.Name, func(v *promise) { v.state = to }) }
}

func removeStep(s volume.Spec) step {
	return step{
		name: fmt.Sprintf("remove %s", s.Name),
		do:   func(w *world) error { return w.remove(s) },
		then: func(p promises) { delete(p, s.Name) },
	}
}

// removeAtOnceStep combines releaseStep and removeStep, which saves the time of a step.
func removeAtOnceStep(s volume.Spec) step {
	return step{
		name: fmt.Sprintf("remove %s at once", s.Name),
		do: func(w *world) error {
			if err := w.release(s, volume.Disposal{Reclaim: volume.ReclaimImmediate, Wipe: volume.WipeNone}); err != nil {
				return err
			}
			return w.remove(s)
		},
		then: func(p promises) { delete(p, s.Name) },
	}
}

func fetchStep(s volume.Spec, files int) step {
	return step{
		name: fmt.Sprintf("fetch %d files into %s", files, s.Name),
		do: func(w *world) error {
			if err := w.mount(w.engine, s); err != nil {
				return err
			}
			return w.fetch(s.Name, files)
		},
		then: func(p promises) { p.change(s.Name, func(v *promise) { v.dataset = files }) },
	}
}
