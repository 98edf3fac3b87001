package fetch

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// layersDir is the directory in the control directory into which archives are fetched and unpacked. It
// is a destination of its own until everything is complete.
const layersDir = store.ControlDir + "/layers"

// unpack fetches and unpacks the archives of a source that consists of archives. done reports that the
// destination already has the source's content, so there is nothing to do.
func (r *run) unpack(ctx context.Context) (done bool, err error) {
	packed, is := r.Store.(store.Archived)
	if !is {
		return false, nil
	}
	if err := packed.Resolve(ctx); err != nil {
		return false, fmt.Errorf("check %s: %w", r.Source.URL, err)
	}
	if c, err := r.wasComplete(); err != nil && !r.Sync { // with Sync, a damaged record is replaced
		return false, err
	} else if c != nil && r.hasRevision(ctx, packed, *c) && r.completeAlready(*c) {
		return true, nil
	}
	if r.baseIsCurrent(ctx, packed) {
		r.progress.setRevision(packed.Revision())
		r.progress.refused.Store(r.base.complete.Refused) // the same digest has the same refused keys
		r.keepBase()
		return true, nil
	}
	if err := r.dest.Mkdir(layersDir); err != nil {
		return false, err
	}
	if err := r.fetchArchives(ctx, packed); err != nil {
		return false, err
	}
	dir, err := r.dest.Root.OpenRoot(layersDir)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	return false, packed.Unpack(ctx, dir)
}

// hasRevision reports whether the earlier run that recorded c has completed this revision. Refused keys are determined
// again, because programs may have removed what was in their way, except in a version that is not current: nothing but
// fetch writes there, so the same content would be refused again. An object that was gone may be back, see stillLacks.
func (r *run) hasRevision(ctx context.Context, packed store.Archived, c complete) bool {
	return c.Revision == packed.Revision() && (c.Refused == 0 || r.base != nil) && r.trustsAll() && (!c.Gone || r.stillLacks(ctx, packed, r.manifest.entries))
}

// stillLacks reports whether the source still has none of the objects outside of archives that the entries lack. A
// registry or a mirror may know a tag before it has all blobs. Asking for those costs little; to list the source, all
// archives would be fetched. An object that was refused because another has its path is asked for, too.
func (r *run) stillLacks(ctx context.Context, packed store.Archived, entries map[string]Entry) bool {
	return !packed.HasAny(ctx, func(o store.Object) bool {
		path, wanted := r.Source.Path(o.Key)
		if e, known := entries[path]; known && e.object().Same(o) { // and not of an earlier revision
			return false
		}
		return wanted && checkPath(path) == nil && r.selection.Wants(path)
	})
}

// trustsAll reports whether all files here were verified by a check that is still sufficient.
func (r *run) trustsAll() bool {
	for _, e := range r.manifest.entries {
		if !r.trusts(e.Check) {
			return false
		}
	}
	return true
}

// fetchArchives fetches the archives in a run of its own, with the same limits. Its progress is shown
// as this run's.
func (r *run) fetchArchives(ctx context.Context, packed store.Archived) error {
	dir, err := r.dest.Root.OpenRoot(layersDir)
	if err != nil {
		return err
	}
	archives, err := packed.Archives(dir)
	if closeErr := dir.Close(); err == nil {
		err = closeErr
	}
	if err != nil || archives == nil {
		return err
	}
	inner := NewProgress(ReadyAfter{})
	r.progress.delegate(inner)
	defer r.progress.delegate(nil)
	config := r.Config
	config.Source = store.Source{URL: r.Source.URL + " (layers)", Kind: r.Source.Kind}
	config.Dest, config.Store, config.Sync = r.Dest+string(os.PathSeparator)+layersDir, archives, true
	config.Include, config.Exclude, config.Paths, config.Elsewhere, config.Order, config.OrderPaths = nil, nil, nil, nil, "", nil
	config.Version, config.exclusive = packed.Revision(), false // the unpacked files lie beside the archives and must stay
	refused, err := Run(ctx, config, inner)
	if err == nil && len(refused) > 0 {
		err = &store.Error{Err: fmt.Errorf("layer %s could not be fetched: %s", refused[0].Key, refused[0].Reason)}
	}
	return err
}

// removeLayers removes the unpacked files once all of them have their names in the destination.
func (r *run) removeLayers() error {
	if err := r.dest.Root.RemoveAll(layersDir); err != nil {
		return fmt.Errorf("remove %s: %w", layersDir, err)
	}
	return nil
}
