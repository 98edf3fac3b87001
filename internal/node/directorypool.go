package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The entries at the root of a directory pool's file system. Only flexlvm sees them: a pod gets the directory
// dataDir of its volume, as a mount of its own.
const (
	volumesDir = "volumes" // volumesDir/NAME/dataDir and volumesDir/NAME/recordFile
	newDir     = "new"     // volumes that are being created; garbage while nobody holds the pool's lock
	goneDir    = "gone"    // volumes that are being removed, under their doomed names
	poolFile   = "pool"

	dataDir    = "data"
	recordFile = "record"
	spareFile  = "record-"
)

// kindDirectories is the kind of this node's record of a directory pool. No volume has it.
const kindDirectories volume.Kind = "directories"

// poolInfo is the content of poolFile. It is written when the pool is complete, and after it has grown.
type poolInfo struct {
	VolumeUUID string       `json:"volumeUUID"` // of the logical volume; on a copy of that, the pool is refused
	Size       volume.Bytes `json:"size"`       // how much the volumes may take altogether
	// Project is the last project that was assigned to a volume. No project is used twice: files that a
	// process still holds open after their volume is gone belong to its project.
	Project quota.Project `json:"project"`
}

// A directoryPool is an open pool: its file system stays mounted, detached from any tree, until close.
type directoryPool struct {
	*os.Root
	device lvm.Device
	name   volume.Name
	info   poolInfo
	fs     *mount.Attached
}

func (p *directoryPool) close() error { return errors.Join(p.Close(), p.fs.Close()) }

func (p *directoryPool) poolName() volume.PoolName {
	return volume.DirectoryPoolOf(p.device.Group, p.name)
}

// openPool opens a directory pool. It queries LVM only if this node has no record of the pool, the pool has no
// device, or some of its copies may be out of date (checkCopies). The error is lvm.ErrNoVolume if LVM shows that
// there is no such pool.
func (e *Engine) openPool(ctx context.Context, g volume.Group, n volume.Name) (*directoryPool, error) {
	d, err := e.usableDevice(ctx, g, n)
	if errors.Is(err, lvm.ErrSuspended) {
		return nil, err
	}
	rec, recErr := e.records.read(g, n)
	if err != nil || recErr != nil || rec.Kind != kindDirectories || rec.VolumeUUID != d.VolumeUUID || e.copyNotes.mayExist(d.VolumeUUID) {
		if d, err = e.askForPool(ctx, g, n); err != nil {
			return nil, err
		}
	}
	return attachPool(d, n)
}

// askForPool looks up a ready directory pool in LVM, and records it on this node.
func (e *Engine) askForPool(ctx context.Context, g volume.Group, n volume.Name) (lvm.Device, error) {
	lv, err := e.lvm.Volume(ctx, g, n)
	if err != nil {
		return lvm.Device{}, fmt.Errorf("look up directory pool %s: %w", volume.DirectoryPoolOf(g, n), err)
	}
	tags, err := poolTags(lv)
	if err != nil {
		return lvm.Device{}, err
	}
	if tags.State != volume.Ready {
		return lvm.Device{}, refused("directory pool %s is %s", volume.DirectoryPoolOf(g, n), poolNotFinished(volume.DirectoryPoolOf(g, n)))
	}
	d, err := e.activeDevice(ctx, lv)
	if err != nil {
		return d, err
	}
	e.recordPool(lv, tags)
	return d, nil
}

// poolNotFinished describes a directory pool that is not finished, and what to do.
func poolNotFinished(pool volume.PoolName) string {
	return fmt.Sprintf("not finished; call `%s` again", pool.CreateCommand())
}

// recordPool records a pool on this node, so that the next mount need not ask LVM.
func (e *Engine) recordPool(lv lvm.LogicalVolume, tags volume.DirectoryPool) {
	rec := record{State: volume.Ready, VolumeUUID: lv.UUID, FS: tags.FS, Size: tags.Size, Kind: kindDirectories}
	if err := e.records.write(lv.Group, lv.Name, rec); err != nil {
		e.logUnrecorded(lv.Group, lv.Name, err)
	}
}

// poolTags returns the tags of a logical volume, and refuses one that is not flexlvm's directory pool.
func poolTags(lv lvm.LogicalVolume) (volume.DirectoryPool, error) {
	if !volume.OwnedDirectoryPool(lv.Tags) {
		return volume.DirectoryPool{}, refused("logical volume %s/%s exists and is no directory pool of flexlvm's; use another name", lv.Group, lv.Name)
	}
	t, err := volume.ParseDirectoryPoolTags(lv.Tags)
	if err != nil {
		return t, refused("the tags of directory pool %s/%s are invalid (%s); %s", lv.Group, lv.Name, err, remedy(err, byLvchange))
	}
	return t, nil
}

// attachPool opens the directory pool on a device.
func attachPool(d lvm.Device, n volume.Name) (*directoryPool, error) {
	fs, err := mount.Attach(mount.XFS, d.Path, false)
	if err != nil {
		return nil, err
	}
	p := &directoryPool{device: d, name: n, fs: fs}
	if err = quota.CheckEnforced(d.Path); err == nil {
		p.Root, err = os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fs.Root().Fd()))
	}
	if err != nil {
		return nil, errors.Join(err, fs.Close())
	}
	err = readJSON(p.Root, poolFile, &p.info)
	if err == nil && p.info.VolumeUUID != d.VolumeUUID {
		err = fmt.Errorf("%w: it records logical volume %s, and is on %s", ErrDamaged, p.info.VolumeUUID, d.VolumeUUID)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open directory pool %s: %w; check it on the node, and restore it from a backup if it is no copy", p.poolName(), err), p.close())
	}
	return p, nil
}

// lockPool serialises changes of a pool's promises. Lock order: a caller that holds a volume's lock may
// acquire the pool's lock, not the other way round.
func (e *Engine) lockPool(ctx context.Context, g volume.Group, n volume.Name) (func(), error) {
	return e.lockVolume(ctx, g, n)
}

// foreignEntries returns the entries in the root of the pool that flexlvm does not create, such as lost+found of
// xfs_repair.
func (p *directoryPool) foreignEntries() ([]string, error) {
	names, err := p.listDir(".")
	own := []string{volumesDir, newDir, goneDir, poolFile, poolFile + "-"}
	return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(own, n) }), err
}

// repairAdvice returns what to do if xfs_repair has moved files of the pool, perhaps whole volumes, to
// lost+found, and an empty string if it has not.
func (p *directoryPool) repairAdvice() (why string, err error) {
	others, err := p.foreignEntries()
	if err != nil || !slices.Contains(others, lostAndFound) {
		return "", err
	}
	return fmt.Sprintf("xfs_repair has moved files of directory pool %[1]s, perhaps whole volumes, to %[2]s: mount it, put them back where they were, and remove the empty %[2]s", p.poolName(), lostAndFound), nil
}

func (p *directoryPool) writeInfo() error { return writeJSON(p.Root, poolFile, p.info) }

// splitPools returns the directory pools among logical volumes, and the others.
func splitPools(all []lvm.LogicalVolume) (pools, volumes []lvm.LogicalVolume) {
	for _, lv := range all {
		if volume.OwnedDirectoryPool(lv.Tags) {
			pools = append(pools, lv)
		} else {
			volumes = append(volumes, lv)
		}
	}
	return pools, volumes
}

// poolsOf returns the directory pools of a group.
func (e *Engine) poolsOf(ctx context.Context, g volume.Group) ([]lvm.LogicalVolume, error) {
	all, err := e.lvm.Volumes(ctx)
	if err != nil {
		return nil, err
	}
	pools, _ := splitPools(all)
	return slices.DeleteFunc(pools, func(lv lvm.LogicalVolume) bool { return lv.Group != g }), nil
}

// readJSON reads a file below root, in which tenants cannot write.
func readJSON(root *os.Root, name string, into any) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	b, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// writeJSON replaces a file below root atomically: a crash leaves the old one or the new one.
func writeJSON(root *os.Root, name string, of any) error {
	b, err := json.Marshal(of)
	if err != nil {
		return err
	}
	tmp := name + "-"
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = root.Rename(tmp, name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return syncDir(root, path.Dir(name))
}

// syncDir makes the entries of a directory durable.
func syncDir(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Fsync(int(d.Fd())), d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", name, err)
	}
	return nil
}
