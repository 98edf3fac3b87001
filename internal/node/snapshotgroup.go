package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/freeze"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// maxFrozen is the longest time for which the volumes of a group are frozen.
const maxFrozen = 10 * time.Second

// MakeSnapshotGroup takes snapshots of several volumes at one instant: volumes in use are frozen until the
// last snapshot is taken, for some seconds at most. Either all of the snapshots become ready or none;
// otherwise each is like one of MakeSnapshot. All volumes are in one namespace and on this node. A raw
// block volume is refused, because it has no file system that could be frozen.
//
// Each snapshot becomes ready by its own write, the first of them only after all are taken and durable. So if
// any snapshot is ready, the others are complete as well; if none is ready, all that an interrupted call has
// left are taken again. If this process is killed, its companion thaws the volumes (package freeze); if that
// is killed, too, ThawLeft does.
func (e *Engine) MakeSnapshotGroup(ctx context.Context, requests []SnapshotRequest, wanted func(context.Context) error) ([]inventory.Volume, error) {
	requests = slices.SortedFunc(slices.Values(requests), func(a, b SnapshotRequest) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Name, b.Name))
	})
	if err := checkGroupRequests(requests); err != nil {
		return nil, err
	}
	g := snapshotGroup{engine: e, members: make([]member, len(requests))}
	for i, r := range requests {
		g.members[i] = member{request: r, givenUp: e.givenUpAt(r.Spec)}
	}
	if err := wanted(ctx); err != nil {
		return nil, err
	}
	return g.run(ctx)
}

// checkGroupRequests checks the requests themselves, without their volumes. It is pure.
func checkGroupRequests(requests []SnapshotRequest) error {
	if len(requests) == 0 {
		return &volume.FieldError{Field: "snapshots", Reason: "are missing: a group is of one volume at least"}
	}
	seen := map[string]bool{}
	for _, r := range requests {
		if err := checkSnapshot(r.Spec); err != nil {
			return err
		}
		source := Ref{Group: r.Group, Name: r.CloneOf}.String()
		switch {
		case r.FSType == volume.Raw:
			return refused("volume %s is a device without a file system, and flexlvm cannot freeze writes to it; leave its claim out of the group, and snapshot it by itself", source)
		case r.Namespace != requests[0].Namespace:
			return refused("volume %s belongs to namespace %q and volume %s to %q; a group is of one namespace", source, r.Namespace, requests[0].CloneOf, requests[0].Namespace)
		case seen[source]:
			return refused("volume %s is in the group twice", source)
		}
		seen[source] = true
	}
	return nil
}

// A snapshotGroup is a group of snapshots that one call takes.
type snapshotGroup struct {
	engine  *Engine
	members []member // sorted by group and name
}

// A member is a snapshot of a group and its source.
type member struct {
	request    SnapshotRequest
	givenUp    time.Time
	lv         lvm.LogicalVolume // of the snapshot, if it exists
	state      volume.State      // of the snapshot; empty if it does not exist
	origin     lvm.LogicalVolume
	sourceTags volume.Tags // of the origin
	content    content
	fs         *mount.Attached // of the origin, if it is in use
}

func (g *snapshotGroup) run(ctx context.Context) ([]inventory.Volume, error) {
	release, err := g.lock(ctx, func(m *member) volume.Name { return m.request.Name })
	if err != nil {
		return nil, err
	}
	defer release()
	taken, half := 0, 0
	for i := range g.members {
		m := &g.members[i]
		if m.lv, m.state, err = g.engine.findSnapshot(ctx, m.request.Spec, m.givenUp); err != nil {
			return nil, err
		}
		switch m.state {
		case volume.Ready:
			taken++
		case volume.Creating:
			half++
		}
	}
	if taken > 0 && taken+half < len(g.members) {
		return nil, refused("the group of snapshot %s/%s: some of it was taken and is gone, so it is not of one instant any more; delete it, and take another", g.members[0].request.Group, g.members[0].request.Name)
	}
	if taken == 0 {
		if err := g.take(ctx); err != nil {
			return nil, err
		}
	}
	return g.finish(ctx)
}

// lock locks the volumes whose names name returns, in the order of their names. While it waits for one
// volume, those that it has locked cannot be mounted, so it waits no longer than sourceLockTimeout.
func (g *snapshotGroup) lock(ctx context.Context, name func(*member) volume.Name) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, g.engine.sourceLockTimeout)
	defer cancel()
	var releases []func()
	release = func() {
		for _, one := range releases {
			one()
		}
	}
	var refs []Ref
	for i := range g.members {
		refs = append(refs, Ref{Group: g.members[i].request.Group, Name: name(&g.members[i])})
	}
	slices.SortFunc(refs, func(a, b Ref) int { return cmp.Compare(a.String(), b.String()) })
	for _, ref := range refs {
		one, err := g.engine.lockVolume(ctx, ref.Group, ref.Name)
		if err != nil {
			release()
			return nil, err
		}
		releases = append(releases, one)
	}
	return release, nil
}

// take takes the snapshots of all members, or leaves none.
func (g *snapshotGroup) take(ctx context.Context) error {
	release, err := g.lock(ctx, func(m *member) volume.Name { return m.request.CloneOf })
	if err != nil {
		return err
	}
	defer release()
	for i := range g.members {
		// An unfinished snapshot whose source is gone stays, for a person to look at: it could not be taken
		// again.
		if _, err := g.engine.lvm.Volume(ctx, g.members[i].request.Group, g.members[i].request.CloneOf); err != nil {
			return nothingToCopy(g.members[i].request.Spec, err)
		}
	}
	for i := range g.members { // before the new snapshots, which may need the room
		if err := g.drop(ctx, &g.members[i]); err != nil {
			return err
		}
	}
	defer g.close()
	if err := g.prepare(ctx); err != nil {
		return err
	}
	if err := g.takeAtOnce(ctx); err != nil {
		return errors.Join(err, g.dropTaken(ctx))
	}
	return nil
}

// prepare looks up the members' sources, checks that all snapshots fit, and attaches the sources in use.
func (g *snapshotGroup) prepare(ctx context.Context) (err error) {
	stores := map[volume.Group]volume.Bytes{}
	for i := range g.members {
		m := &g.members[i]
		if err := g.engine.checkGroupUUID(ctx, m.request.Spec); err != nil {
			return err
		}
		if m.origin, m.sourceTags, m.content, err = g.engine.snapshotSource(ctx, m.request); err != nil {
			return err
		}
		if m.request.CopyOnWrite() {
			store, _ := volume.COWStore(m.origin.Size, m.origin.Extent, m.request.Reserve)
			stores[m.request.Group] += store
		}
	}
	for group, size := range stores {
		if err := g.engine.lvm.CheckFree(ctx, group, volume.Shape{Layout: volume.Linear}, size); err != nil {
			return fmt.Errorf("take snapshots of %d volumes together: %w", len(g.members), err)
		}
	}
	return g.attach()
}

// attach opens the file systems that are in use, and writes them back, so that they are frozen only for a
// moment. The others have no writer, and their locks keep it that way.
func (g *snapshotGroup) attach() (err error) {
	for i := range g.members {
		m := &g.members[i]
		if !m.origin.Open || m.content.path == "" {
			continue
		}
		if !m.request.Encrypted { // LVM does not freeze the file system of an encrypted volume
			if err := freeze.CheckSnapshots(); err != nil {
				return err
			}
		}
		if m.fs, err = mount.Attach(m.content.info().mountType, m.content.path, false); err != nil {
			return err
		}
		if err := syncAll(m.fs); err != nil {
			return fmt.Errorf("write back %s: %w", m.content.path, err)
		}
	}
	return nil
}

// takeAtOnce takes the snapshots while all volumes in use are frozen. Nothing in it may write to a volume.
func (g *snapshotGroup) takeAtOnce(ctx context.Context) error {
	e := g.engine
	var roots []*os.File
	var held []frozen
	for i := range g.members {
		if m := &g.members[i]; m.fs != nil {
			roots = append(roots, m.fs.Root())
			held = append(held, frozen{Group: m.request.Group, Name: m.request.CloneOf, UUID: m.origin.UUID, FSType: m.sourceTags.FSType, LUKS: m.sourceTags.LUKS})
		}
	}
	release, err := e.writeFrozen(ctx, held)
	if err != nil {
		return err
	}
	defer release()
	hold, err := freeze.Prepare(e.host.Unkillable, roots, e.maxFrozen)
	if err != nil {
		return errors.Join(err, e.removeFrozen())
	}
	err = g.takeFrozen(ctx, hold)
	if thawErr := hold.Thaw(); thawErr != nil {
		return errors.Join(err, thawErr) // the list of frozen volumes stays, for ThawLeft
	}
	e.after("thaw")
	return errors.Join(err, e.removeFrozen())
}

func (g *snapshotGroup) takeFrozen(ctx context.Context, hold *freeze.Hold) error {
	end := time.Now().Add(g.engine.maxFrozen)
	if err := hold.Freeze(end); err != nil {
		return err
	}
	g.engine.after("freeze")
	for i := range g.members {
		m := &g.members[i]
		if _, err := g.engine.takeCopy(ctx, m.request.Spec, m.origin, m.sourceTags); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("take snapshots of %d volumes together: they may be frozen for %s, in which %d were not taken; LVM is slow on this node, or take fewer together", len(g.members), g.engine.maxFrozen, len(g.members)-i)
		}
		g.engine.after("snapshot")
	}
	return nil
}

// dropTaken removes the snapshots of a call that then failed.
func (g *snapshotGroup) dropTaken(ctx context.Context) error {
	var failures []error
	for i := range g.members {
		m := &g.members[i]
		var err error
		if m.lv, m.state, err = g.engine.findSnapshot(ctx, m.request.Spec, m.givenUp); err == nil {
			err = g.drop(ctx, m)
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// drop removes an unfinished snapshot, if there is one.
func (g *snapshotGroup) drop(ctx context.Context, m *member) error {
	if m.state != volume.Creating {
		return nil
	}
	m.state = ""
	return g.engine.removeIncomplete(ctx, m.request.Spec, m.lv)
}

func (g *snapshotGroup) close() {
	for i := range g.members {
		if fs := g.members[i].fs; fs != nil {
			_ = fs.Close() // nothing was written to it
			g.members[i].fs = nil
		}
	}
}

// finish makes all members ready, once all are complete and durable. All get the creation time of the first,
// because all sources were frozen by then.
func (g *snapshotGroup) finish(ctx context.Context) ([]inventory.Volume, error) {
	e := g.engine
	out := make([]inventory.Volume, len(g.members))
	for i := range g.members {
		r := g.members[i].request
		lv, err := e.lvm.Volume(ctx, r.Group, r.Name)
		if err == nil {
			err = isTaken(r.Spec, lv)
		}
		if err == nil {
			err = e.lvm.Flush(ctx, r.Group, r.Name)
		}
		if err != nil {
			return nil, err
		}
		out[i] = e.describe(lv)
	}
	for i := range g.members {
		if out[i].State == volume.Ready {
			continue
		}
		made, err := e.finishSnapshot(ctx, g.members[i].request.Spec)
		if err != nil {
			return nil, err
		}
		out[i] = made
	}
	first := slices.MinFunc(out, func(a, b inventory.Volume) int { return a.Created.Compare(b.Created) }).Created
	for i := range out {
		out[i].Created = first
	}
	return out, nil
}
