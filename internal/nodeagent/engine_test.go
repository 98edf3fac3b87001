package nodeagent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// fakeEngine keeps a node's volumes in memory and follows the engine's rules.
type fakeEngine struct {
	now func() time.Time

	mu          sync.Mutex
	pools       []inventory.Pool
	volumes     []inventory.Volume
	tombs       []string  // volumes that were released before they were created
	served      []string  // volumes that the node has had
	servedAt    time.Time // their last use
	calls       []string
	inventories int
	// fault returns the error of a call, such as "remove flexlvm/name"; nil: no call fails.
	fault func(call string) error
	// hangs blocks inventories until it is closed, or their time is up; nil: none.
	hangs chan struct{}
	// committing blocks removals before their commit until it is closed.
	committing chan struct{}
	// wiping blocks removals that wipe, or that delete file by file, after their commit until it is closed.
	wiping chan struct{}
	// committed returns the error of the next removal, after its commit.
	committed func() error
	// beforeWanted is called before CreateAhead and MakeSnapshot call wanted.
	beforeWanted func()
}

var _ nodeagent.Engine = (*fakeEngine)(nil)

func (e *fakeEngine) with(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// note records a call and returns its fault. The caller holds the lock.
func (e *fakeEngine) note(call string, args ...any) error {
	call = fmt.Sprintf(call, args...)
	e.calls = append(e.calls, call)
	if e.fault != nil {
		return e.fault(call)
	}
	return nil
}

func (e *fakeEngine) find(ref node.Ref, name volume.Name) *inventory.Volume {
	i := slices.IndexFunc(e.volumes, func(v inventory.Volume) bool { return v.Group == ref.Group && v.Name == name })
	if i < 0 {
		return nil
	}
	return &e.volumes[i]
}

func (e *fakeEngine) Inventory(ctx context.Context) (inventory.Inventory, error) {
	e.mu.Lock()
	e.inventories++
	fault, hangs := e.fault, e.hangs
	e.mu.Unlock()
	if hangs != nil {
		select {
		case <-hangs:
		case <-ctx.Done():
			return inventory.Inventory{}, ctx.Err()
		}
	}
	if fault != nil {
		if err := fault("inventory"); err != nil {
			return inventory.Inventory{}, err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return inventory.Inventory{Pools: slices.Clone(e.pools), Volumes: slices.Clone(e.volumes)}, nil
}

func (e *fakeEngine) Heal(_ context.Context, ref node.Ref) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.note("heal %s", ref); err != nil {
		return err
	}
	if v := e.find(ref, ref.Name); v != nil && v.State == volume.Ready {
		v.Active, v.Problem = true, ""
	}
	return nil
}

func (e *fakeEngine) Release(_ context.Context, ref node.Ref, to volume.State, d volume.Disposal) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.note("release %s %s", ref, to); err != nil {
		return err
	}
	v := e.find(ref, ref.Name)
	switch {
	case v == nil:
		e.tombs = append(e.tombs, ref.String())
		return nil
	case v.Cluster != ref.Cluster:
		return errors.New("of another cluster")
	case ref.UUID != "" && ref.UUID != v.UUID:
		return errors.New("is another by now")
	case v.State == to:
		return nil
	case v.State == volume.Unreferenced && to == volume.Retained:
	case v.State != volume.Ready && v.State != volume.Creating:
		return fmt.Errorf("is %s", v.State)
	}
	v.State, v.Released, v.Reclaim, v.Wipe = to, e.now(), d.Reclaim, d.Wipe
	return nil
}

func (e *fakeEngine) SetStateOf(_ context.Context, ref node.Ref, fs string, to volume.State) (inventory.Volume, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.note("set %s %s", ref, to); err != nil {
		return inventory.Volume{}, err
	}
	v := e.find(ref, ref.Name)
	switch {
	case v == nil:
		return inventory.Volume{}, errors.New("no such volume")
	case v.Cluster != ref.Cluster, v.FS != fs, ref.UUID != "" && ref.UUID != v.UUID:
		return inventory.Volume{}, errors.New("another is meant")
	case v.State != to && !volume.MayMove(v.State, to, volume.ByPerson):
		return inventory.Volume{}, fmt.Errorf("is %s", v.State)
	}
	v.State = to
	return *v, nil
}

func (e *fakeEngine) Remove(ctx context.Context, ref node.Ref) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.note("remove %s", ref); err != nil {
		return err
	}
	if committing := e.committing; committing != nil {
		e.mu.Unlock()
		select {
		case <-committing:
		case <-ctx.Done():
		}
		e.mu.Lock()
	}
	if ref.Name.IsDoomed() { // only the doomed volume of this name
		ref.Name = ref.Name.Undoomed()
	} else if v := e.find(ref, ref.Name); v != nil {
		switch {
		case v.Cluster != ref.Cluster:
			return errors.New("of another cluster")
		case ref.UUID != "" && ref.UUID != v.UUID:
			return errors.New("is another by now")
		case v.State != volume.Unreferenced:
			return fmt.Errorf("is %s", v.State)
		case v.Open:
			return fmt.Errorf("remove %s: %w", ref, node.ErrInUse)
		}
		v.State, v.Name = volume.Doomed, v.Name.Doomed()
		if fails := e.committed; fails != nil {
			e.committed = nil
			return fails()
		}
	}
	v := e.find(ref, ref.Name.Doomed())
	if v == nil {
		return nil
	}
	if wiping := e.wiping; wiping != nil && (v.Wipe != volume.WipeNone || v.Layout == volume.Directory) {
		e.mu.Unlock()
		select {
		case <-wiping:
		case <-ctx.Done():
		}
		e.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		v = e.find(ref, ref.Name.Doomed())
	}
	for i := range e.pools {
		if e.pools[i].Name == v.Pool() {
			e.pools[i].Free += v.Allocated
			e.pools[i].LVs--
		}
	}
	gone := *v
	e.volumes = slices.DeleteFunc(e.volumes, func(other inventory.Volume) bool {
		return other.UUID == gone.UUID && other.GroupUUID == gone.GroupUUID
	})
	return nil
}

func (e *fakeEngine) RemoveAll(ctx context.Context, refs []node.Ref) []error {
	e.with(func() { _ = e.note("together %d", len(refs)) })
	errs := make([]error, len(refs))
	for i, ref := range refs {
		errs[i] = e.Remove(ctx, ref)
	}
	return errs
}

func (e *fakeEngine) CreateCloneAhead(_ context.Context, spec volume.Spec) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.note("clone %s/%s of %s", spec.Group, spec.Name, spec.CloneOf); err != nil {
		return err
	}
	source := e.find(node.Ref{Group: spec.Group}, spec.CloneOf)
	switch {
	case e.find(node.Ref{Group: spec.Group}, spec.Name) != nil:
		return nil
	case source == nil || source.State == volume.Creating || source.Namespace != spec.Namespace:
		return errors.New("nothing to copy")
	}
	made := *source
	made.Name, made.UUID, made.State, made.Size = spec.Name, "uuid-"+string(spec.Name), volume.Ready, spec.Size
	e.volumes = append(e.volumes, made)
	return nil
}

func (e *fakeEngine) CreateAhead(ctx context.Context, spec volume.Spec, wanted func(context.Context) error) error {
	if e.beforeWanted != nil {
		e.beforeWanted()
	}
	if err := wanted(ctx); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.note("create ahead %s/%s of %s for %s", spec.Group, spec.Name, spec.Size, spec.Namespace); err != nil {
		return err
	}
	e.volumes = append(e.volumes, inventory.Volume{
		Group: spec.Group, GroupUUID: evictiontest.GroupUUID, Name: spec.Name, UUID: "uuid-" + string(spec.Name), State: volume.Ready,
		Size: spec.Size, Allocated: spec.Size, Cluster: spec.Cluster, Namespace: spec.Namespace, Kind: spec.Kind, FSType: spec.FSType,
	})
	return nil
}

func (e *fakeEngine) MakeSnapshot(ctx context.Context, r node.SnapshotRequest, wanted func(context.Context) error) (inventory.Volume, error) {
	spec := r.Spec
	if e.beforeWanted != nil {
		e.beforeWanted()
	}
	if err := wanted(ctx); err != nil {
		return inventory.Volume{}, err
	}
	if err := e.CreateCloneAhead(ctx, spec); err != nil {
		return inventory.Volume{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	made := e.find(node.Ref{Group: spec.Group}, spec.Name)
	made.Kind = volume.Snapshot
	return *made, nil
}

func (e *fakeEngine) MakeSnapshotGroup(ctx context.Context, requests []node.SnapshotRequest, wanted func(context.Context) error) (made []inventory.Volume, err error) {
	if err := e.noted("group of %d", len(requests)); err != nil {
		return nil, err
	}
	for _, r := range requests {
		one, err := e.MakeSnapshot(ctx, r, wanted)
		if err != nil {
			return nil, err
		}
		made = append(made, one)
	}
	return made, nil
}

func (e *fakeEngine) HadVolume(g volume.Group, n volume.Name) (lastUsed time.Time, is bool, err error) {
	e.with(func() { lastUsed, is = e.servedAt, slices.Contains(e.served, string(g)+"/"+string(n)) })
	return lastUsed, is, nil
}

func (e *fakeEngine) ThawLeft(context.Context) error { return e.noted("thaw") }

func (e *fakeEngine) noted(format string, args ...any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.note(format, args...)
}

// names returns the names and states of the volumes.
func (e *fakeEngine) names() (out []string) {
	e.with(func() {
		for _, v := range e.volumes {
			out = append(out, fmt.Sprintf("%s %s", v.Name, v.State))
		}
	})
	slices.Sort(out)
	return out
}

// called returns the calls that start with prefix.
func (e *fakeEngine) called(prefix string) (out []string) {
	e.with(func() {
		for _, c := range e.calls {
			if len(c) >= len(prefix) && c[:len(prefix)] == prefix {
				out = append(out, c)
			}
		}
	})
	return out
}

func (e *fakeEngine) rounds() (n int) {
	e.with(func() { n = e.inventories })
	return n
}

// doomed returns the volumes in state doomed.
func (e *fakeEngine) doomed() []string {
	return slices.DeleteFunc(e.names(), func(n string) bool { return !strings.HasSuffix(n, " doomed") })
}

// failing fails the calls that start with prefix.
func failing(prefix string, err error) func(string) error {
	return func(call string) error {
		if strings.HasPrefix(call, prefix) {
			return err
		}
		return nil
	}
}
