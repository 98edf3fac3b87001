package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/ondisk"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An openedVolume is a volume that may be mounted: it is flexlvm's and the caller's, and its device exists and holds
// the file system that its tags name.
type openedVolume struct {
	device   lvm.Device // of the logical volume
	content  content
	tags     volume.Tags
	recorded bool     // this node's record is up to date
	growing  bool     // its file system must grow, whatever its quota is
	key      luks.Key // of an encrypted volume, already checked
}

// errAskLVM: this node's record and the kernel alone do not settle the matter.
var errAskLVM = errors.New("ask LVM")

// findOrCreate returns the volume of a spec, and creates it if it does not exist.
func (e *Engine) findOrCreate(ctx context.Context, spec volume.Spec, key luks.Key) (openedVolume, error) {
	f, err := e.openFromRecord(ctx, spec, key)
	if !errors.Is(err, errAskLVM) {
		return f, err
	}
	e.expireTombstones(spec.Group, spec.Name)
	mustExist, err := e.mustExist(ctx, spec)
	if err != nil {
		return openedVolume{}, err
	}
	if !mustExist {
		// Creating first and looking up afterwards is as safe as open(2) with O_EXCL: LVM refuses a name that
		// exists and touches nothing.
		f, err := e.create(ctx, spec, key)
		if !errors.Is(err, lvm.ErrExists) {
			return f, err
		}
	}
	return e.openExisting(ctx, spec, key)
}

// mustExist reports whether the volume of a spec must exist already: if LVM shows none, it is not created.
func (e *Engine) mustExist(ctx context.Context, spec volume.Spec) (bool, error) {
	if spec.FS != "" {
		return true, nil // the spec names an existing file system, which an empty volume must not replace
	}
	recorded, err := e.records.hasRecordOf(spec.Group, spec.Name)
	if err != nil {
		// While that is unknown, the volume counts as recorded: it may have existed.
		e.log.WithError(err).Warn("this node's records cannot be read")
	}
	if err != nil || recorded {
		return true, nil
	}
	if spec.CloneOf == "" {
		return false, nil
	}
	return e.exists(ctx, spec) // creating a copy needs its source; an existing copy no longer does
}

// exists reports whether LVM shows the volume.
func (e *Engine) exists(ctx context.Context, spec volume.Spec) (bool, error) {
	_, err := e.lvm.Volume(ctx, spec.Group, spec.Name)
	if errors.Is(err, lvm.ErrNoVolume) {
		return false, nil
	}
	return err == nil, e.explainGroup(ctx, spec, err)
}

// openFromRecord opens the volume from this node's record and the kernel's state alone, and returns errAskLVM in
// any doubt. A suspended device is the exception (lvm.ErrSuspended): LVM cannot help there, and may itself wait for
// the device.
func (e *Engine) openFromRecord(ctx context.Context, spec volume.Spec, key luks.Key) (openedVolume, error) {
	d, err := e.usableDevice(ctx, spec.Group, spec.Name)
	if errors.Is(err, lvm.ErrSuspended) {
		return openedVolume{}, err
	}
	if err != nil {
		return openedVolume{}, errAskLVM
	}
	rec, err := e.records.read(spec.Group, spec.Name)
	if err != nil || d.VolumeUUID != rec.VolumeUUID || !rec.mountable() {
		return openedVolume{}, errAskLVM
	}
	if e.copyNotes.mayExist(d.VolumeUUID) {
		return openedVolume{}, errAskLVM // see checkCopies
	}
	tags := rec.tags()
	c := e.contentOf(d, tags)
	// A record can be visible before it is durable, after a call that died in between. It is the only
	// protection of the volume until the tags say ready, so it is written again.
	f := openedVolume{device: d, content: c, tags: tags, recorded: rec.State == volume.Ready, key: key}
	if tags.LUKS != "" {
		if h, err := readHeader(d.Path); err != nil || h.UUID != tags.LUKS {
			return openedVolume{}, errAskLVM
		}
		// Before the key is tried.
		if err := admit(spec, tags, d.GroupUUID); err != nil {
			return openedVolume{}, err
		}
		if f.content, err = e.open(ctx, d, tags, key); err != nil {
			return openedVolume{}, err
		}
	}
	if id, err := f.content.uuid(f.content.path); err != nil || id != rec.FS {
		return openedVolume{}, errAskLVM
	}
	return f, admit(spec, tags, d.GroupUUID)
}

// create creates the volume, with all its tags in state creating, and formats it, or creates it as a copy.
func (e *Engine) create(ctx context.Context, spec volume.Spec, key luks.Key) (openedVolume, error) {
	if err := e.checkGroupUUID(ctx, spec); err != nil {
		return openedVolume{}, err
	}
	if spec.CloneOf != "" {
		return e.copyOf(ctx, spec, key)
	}
	tags, err := newTags(spec)
	if err != nil {
		return openedVolume{}, err
	}
	lv := lvm.LogicalVolume{
		Group: spec.Group, Name: spec.Name, Tags: tags.Strings(),
		Size: spec.DeviceSize(), Shape: spec.Shape(),
	}
	if err := e.lvm.Create(ctx, lv); err != nil {
		return openedVolume{}, err
	}
	endRetryTurn(ctx)
	e.after("lvcreate")
	d, err := e.usableDevice(ctx, spec.Group, spec.Name)
	if err != nil {
		return openedVolume{}, fmt.Errorf("LVM created %s/%s and its device cannot be used: %w", spec.Group, spec.Name, err)
	}
	f := openedVolume{device: d, content: e.contentOf(d, tags), tags: tags, key: key}
	if tags.LUKS != "" {
		if err := e.encrypt(ctx, spec, d, tags, key); err != nil {
			return openedVolume{}, err
		}
		if f.content, err = e.open(ctx, d, tags, key); err != nil {
			return openedVolume{}, err
		}
	}
	return f, e.format(ctx, spec, f)
}

// checkGroupUUID checks that the volume group has the UUID that the spec names.
func (e *Engine) checkGroupUUID(ctx context.Context, spec volume.Spec) error {
	if spec.GroupUUID == "" {
		return nil
	}
	g, err := e.lvm.Group(ctx, spec.Group)
	if err == nil {
		err = checkGroup(spec, g.UUID)
	}
	return e.explainGroup(ctx, spec, err)
}

// newTags returns the tags of a new volume, with new UUIDs.
func newTags(spec volume.Spec) (t volume.Tags, err error) {
	t = volume.Tags{
		State: volume.Creating, Size: spec.Size,
		Namespace: spec.Namespace, Cluster: spec.Cluster, Kind: spec.Kind, FSType: spec.FSType,
	}
	if t.FS, err = ondisk.NewUUID(); err == nil && spec.Encrypted {
		t.LUKS, err = ondisk.NewUUID()
	}
	return t, err
}

// openExisting opens a volume that LVM shows: after a reboot, after a crash, or if this node has no record of
// it. A volume that LVM never finished is removed and created again (dropUnfinished), an unfinished copy is
// created again or finished (copyAgain), and a volume in state creating that no pod has had is formatted
// (formatUnlessServed).
func (e *Engine) openExisting(ctx context.Context, spec volume.Spec, key luks.Key) (openedVolume, error) {
	lv, tags, err := e.lookUpAdmitted(ctx, spec)
	if err != nil {
		return openedVolume{}, err
	}
	if tags.Clone != "" {
		return e.copyAgain(ctx, spec, lv, tags, key)
	}
	dropped, err := e.dropUnfinished(ctx, spec, lv, tags)
	if dropped {
		return e.create(ctx, spec, key)
	}
	if err != nil {
		return openedVolume{}, err
	}
	d, err := e.activeDevice(ctx, lv)
	if err != nil && tags.State == volume.Creating && lv.Shape.Layout == volume.Thin {
		if flushErr := e.flushPoolMessages(ctx, lv, tags); flushErr != nil {
			return openedVolume{}, errors.Join(err, flushErr)
		}
		d, err = e.activeDevice(ctx, lv)
	}
	if err != nil {
		return openedVolume{}, err
	}
	f := openedVolume{device: d, tags: tags, key: key}
	// A record that cannot be read counts as one of this volume, so that nothing is formatted; but it is not
	// needed if the device holds the file system of the tags.
	mayHoldData, recordErr := e.mayHoldData(lv, tags)
	if f.content, err = e.openOrFormatContainer(ctx, spec, lv, f, mayHoldData); err != nil {
		return f, errors.Join(err, recordErr)
	}
	valid, err := checkFilesystem(lv, tags, f.content, mayHoldData)
	switch {
	case err != nil:
		return f, errors.Join(err, recordErr)
	case recordErr != nil:
		e.log.WithError(recordErr).WithField("volume", string(lv.Group)+"/"+string(lv.Name)).Warn("this node's record of the volume cannot be read and is rewritten")
	}
	if valid && (tags.State != volume.Creating || mayHoldData) {
		return f, nil
	}
	return f, e.formatUnlessServed(ctx, spec, lv, f, valid)
}

// formatUnlessServed formats a volume in state creating without a record, unless a pod has had it. valid
// reports that its superblock is valid.
func (e *Engine) formatUnlessServed(ctx context.Context, spec volume.Spec, lv lvm.LogicalVolume, f openedVolume, valid bool) error {
	if spec.FS != "" && !valid { // the volume was brought back
		return damagedErr(lv, f.tags, f.content, "", errNoFilesystem)
	}
	if spec.FS == "" {
		may, err := mayFormat(spec, lv, f, valid)
		if err != nil {
			return err
		}
		if may {
			return e.format(ctx, spec, f)
		}
	}
	return e.markUsed(f) // the call that formatted it may have been killed before it marked it
}

// mayHoldData is like isRecorded, but false for a raw block volume whose tags and record both say creating:
// such a volume becomes ready before any pod gets it (recordMountable). If its record has another state, or cannot be
// read, the result is true, because the tags may be older than the record.
func (e *Engine) mayHoldData(lv lvm.LogicalVolume, tags volume.Tags) (bool, error) {
	recorded, err := e.isRecorded(lv)
	if err != nil || !recorded || tags.FSType != volume.Raw || tags.State != volume.Creating {
		return recorded, err
	}
	rec, err := e.records.read(lv.Group, lv.Name)
	return err != nil || rec.State != volume.Creating, err
}

// lookUpAdmitted looks up in LVM a volume that must exist and that the caller may use.
func (e *Engine) lookUpAdmitted(ctx context.Context, spec volume.Spec) (lvm.LogicalVolume, volume.Tags, error) {
	lv, err := e.lvm.Volume(ctx, spec.Group, spec.Name)
	if errors.Is(err, lvm.ErrNoVolume) {
		if since, ok := e.records.blockedByTombstone(spec.Group, spec.Name, e.now()); ok {
			return lv, volume.Tags{}, removedErr(spec, since)
		}
		if known, rerr := e.records.hasRecordOf(spec.Group, spec.Name); known || rerr != nil {
			err = lostErr(e.records.file(spec.Group, spec.Name), err)
		} else if spec.FS != "" {
			err = evictedErr(spec, err)
		}
	}
	if err != nil {
		return lv, volume.Tags{}, e.explainGroup(ctx, spec, err)
	}
	tags, err := ownedTags(lv)
	if err != nil {
		return lv, volume.Tags{}, err
	}
	return lv, tags, e.explainGroup(ctx, spec, admit(spec, tags, lv.GroupUUID))
}

// checkFilesystem reports whether the device holds the file system of the tags. It returns false without an
// error only for a volume in state creating that was never handed out and whose device has no valid
// superblock with that UUID; mayFormat decides whether it may be formatted.
func checkFilesystem(lv lvm.LogicalVolume, tags volume.Tags, c content, mayHoldData bool) (bool, error) {
	id, err := c.uuid(c.path)
	switch {
	case err == nil && id == tags.FS:
		return true, nil
	case err != nil && !errors.Is(err, errNoFilesystem):
		return false, explainDeviceError(lv, err)
	case tags.State != volume.Creating || mayHoldData:
		return false, damagedErr(lv, tags, c, id, err)
	}
	return false, nil
}

// mayFormat reports whether a volume in state creating without a record may be formatted, because no pod has
// had it: this node may have lost its records, and the superblock as well. valid reports that the superblock
// is valid. mayFormat is the last check before such a volume is formatted.
//
// Before a volume is handed out, it is marked, or mounted and grown, possibly by zero bytes (setQuota). Either
// leaves a superblock, or a copy of one, that mkfs never writes (usedAt). If there is one, the volume may hold
// data and is never formatted; if its own superblock is lost, the volume is damaged. If there is none, no pod
// has had the volume, whatever mkfs has left. A valid superblock does not show that mkfs has finished:
// mkfs.xfs does not flush the disk before it completes the superblock, and a power cut may lose its earlier
// writes. format flushes the disk before the file system is marked or mounted.
//
// While the volume is mounted, the page cache may hold older superblocks; mkfs then refuses the device.
func mayFormat(spec volume.Spec, lv lvm.LogicalVolume, f openedVolume, valid bool) (bool, error) {
	aligns, err := lvm.Device{Path: f.content.path, Number: f.content.number}.IOSizes()
	if err != nil {
		return false, err
	}
	spec.Size = f.tags.Size
	at, err := f.content.usedAt(f.content.path, use{
		tags: f.tags, inodes: spec.Inodes, aligns: aligns,
		sizes: []volume.Bytes{lv.Shape.RoundUp(spec.DeviceSize(), lv.Extent) - spec.Header()}, // makeRoom may have extended it
	})
	switch {
	case errors.Is(err, errNoFilesystem):
		return true, nil
	case err != nil || valid:
		return false, err
	}
	return false, damagedErr(lv, f.tags, f.content, "", fmt.Errorf("%w, and a copy of its superblock, at byte %d, shows that it was in use", errNoFilesystem, int64(at)))
}

// format creates the file system, and flushes it to the disk. Only create and formatUnlessServed call it, and
// only in state creating: the tags were read under this volume's lock.
func (e *Engine) format(ctx context.Context, spec volume.Spec, f openedVolume) error {
	if f.tags.State != volume.Creating {
		return fmt.Errorf("refusing to format %s/%s: its state is %s", spec.Group, spec.Name, f.tags.State)
	}
	if spec.CloneOf != "" || f.tags.Clone != "" {
		return refused("volume %s/%s is not formatted: it is to be a copy, of %s %q", spec.Group, spec.Name, volume.OptionCloneOf, spec.CloneOf)
	}
	if err := f.content.format(ctx, f.content.path, f.tags, spec.Inodes); err != nil {
		return err
	}
	if err := durable.Sync(f.content.path); err != nil {
		return err
	}
	e.after("mkfs")
	return e.markUsed(f)
}

// markUsed is the last step before a new file system is mounted for the first time: from here on mayFormat
// refuses it, because a pod may have had it.
func (e *Engine) markUsed(f openedVolume) error {
	written, err := f.content.markUsed(f.content.path, f.tags)
	if err != nil {
		return err
	}
	if written {
		e.after("mark")
	}
	return nil
}

// activeDevice returns the device of a volume, and activates the volume if necessary, as after a reboot.
func (e *Engine) activeDevice(ctx context.Context, lv lvm.LogicalVolume) (lvm.Device, error) {
	d, err := e.deviceOf(ctx, lv, e.activate)
	if err != nil {
		return lvm.Device{}, err
	}
	return d, e.checkCopies(ctx, lv)
}

// deviceOf returns the device of a volume, and calls activate for the volume if necessary.
func (e *Engine) deviceOf(ctx context.Context, lv lvm.LogicalVolume, activate func(context.Context, lvm.LogicalVolume) error) (lvm.Device, error) {
	d, err := e.usableDevice(ctx, lv.Group, lv.Name)
	if errors.Is(err, lvm.ErrNoDevice) {
		if lv.Skipped && !lv.Active {
			return lvm.Device{}, fmt.Errorf("%w: LVM skips its activation, perhaps as a person wanted; %s", err, endsSkipping(lv))
		}
		appear := activate
		if lv.Active { // only its node in /dev is missing
			appear = e.lvm.MakeNode
		}
		if err := appear(ctx, lv); err != nil {
			return lvm.Device{}, err
		}
		e.after("activate")
		if d, err = e.usableDevice(ctx, lv.Group, lv.Name); errors.Is(err, lvm.ErrNoDevice) {
			err = fmt.Errorf("LVM has activated %s/%s and its device did not appear; run `vgmknodes %s`: %w", lv.Group, lv.Name, lv.Group, err)
		}
	}
	if err != nil {
		return lvm.Device{}, err
	}
	if d.VolumeUUID != lv.UUID {
		return lvm.Device{}, fmt.Errorf("%s belongs to volume %s and LVM says %s/%s is %s; run `flexlvm doctor`", d.Path, d.VolumeUUID, lv.Group, lv.Name, lv.UUID)
	}
	return d, nil
}
