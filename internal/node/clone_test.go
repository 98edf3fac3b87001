package node

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	sourceFS = "11111111-1111-4111-8111-111111111111"
	copyFS   = "22222222-2222-4222-8222-222222222222"
)

// cloneSpec is the spec of a 64 MiB copy, and sourceTags are the tags of its source.
func cloneSpec() volume.Spec {
	return volume.Spec{
		Group: "flexlvm", Name: "copy", Size: 64 * volume.MiB, Layout: volume.Thin, ThinPool: "pool", CloneOf: "source",
		Kind: volume.Claim, Cluster: "c", Namespace: "shop",
	}
}

func sourceTags() volume.Tags {
	return volume.Tags{State: volume.Ready, FS: sourceFS, Size: 64 * volume.MiB, Namespace: "shop", Cluster: "c", Kind: volume.Claim}
}

func halfTags() volume.Tags {
	t := sourceTags()
	t.State, t.FS, t.Clone = volume.Creating, copyFS, sourceFS
	return t
}

// noPrograms fails the test if a program is run.
func noPrograms(t *testing.T) command.Programs {
	ran := commandtest.Func(func(argv ...string) (string, error) {
		t.Fatalf("ran %s", argv)
		return "", nil
	})
	return command.Programs{Unkillable: ran, Killable: ran}
}

// The advice for a source that does not exist is true of both kinds of sources, and of copies and snapshots.
func TestNothingToCopy(t *testing.T) {
	spec := cloneSpec()
	err := nothingToCopy(spec, lvm.ErrNoVolume)
	require.ErrorIs(t, err, lvm.ErrNoVolume)
	require.ErrorContains(t, err, "if it is the volume of a claim that no pod has used yet, start one; if it was a snapshot, or a pod has used that claim, it is gone: delete the claim of the copy")
	spec.Kind = volume.Snapshot
	require.ErrorContains(t, nothingToCopy(spec, lvm.ErrNoVolume), "start one; if one has, the volume is gone: delete the VolumeSnapshot, or the VolumeGroupSnapshot that it is of")
	require.Equal(t, lvm.ErrNoDevice, nothingToCopy(spec, lvm.ErrNoDevice), "whether it exists is unknown")
}

// A volume that is to be a copy is never formatted, whatever its state.
func TestACopyIsNeverFormatted(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	plain := cloneSpec()
	plain.CloneOf = ""
	creating := sourceTags()
	creating.State = volume.Creating
	for name, c := range map[string]struct {
		spec volume.Spec
		tags volume.Tags
	}{
		"half a copy":                             {cloneSpec(), halfTags()},
		"half a copy, the option is lost":         {plain, halfTags()},
		"to be a copy, and the tag of it is lost": {cloneSpec(), creating},
		"ready": {plain, sourceTags()},
	} {
		require.Error(t, e.format(t.Context(), c.spec, openedVolume{tags: c.tags, content: content{filesystem: xfsKind{}, path: "/dev/null"}}), name)
		require.Error(t, e.encrypt(t.Context(), c.spec, lvm.Device{Path: "/dev/null"}, c.tags, luks.Key{}), name)
	}
}

// thick makes the copy and its source linear.
func thick(s *volume.Spec, lv *lvm.LogicalVolume, _ *volume.Tags) {
	s.Layout, s.ThinPool = volume.Linear, ""
	lv.Shape = volume.Shape{Layout: volume.Linear}
}

func TestCheckCopyable(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*volume.Spec, *lvm.LogicalVolume, *volume.Tags)
		says   string // empty: the copy is allowed
	}{
		"ready":        {nil, ""},
		"larger":       {func(s *volume.Spec, _ *lvm.LogicalVolume, _ *volume.Tags) { s.Size *= 2 }, ""},
		"unreferenced": {func(_ *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) { v.State = volume.Unreferenced }, ""},
		"retained":     {func(_ *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) { v.State = volume.Retained }, ""},
		"creating":     {func(_ *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) { v.State = volume.Creating }, "is not created yet"},
		"partly zeroed": {func(s *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) {
			s.FSType, v.FSType, v.State, v.Zeroed = volume.Raw, volume.Raw, volume.Unreferenced, 1
		}, "is not created yet"},
		"half a copy":         {func(_ *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) { *v = halfTags() }, "is not created yet"},
		"doomed":              {func(_ *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) { v.State = volume.Doomed }, "is being removed"},
		"doomed by name":      {func(_ *volume.Spec, l *lvm.LogicalVolume, _ *volume.Tags) { l.Name = l.Name.Doomed() }, "is being removed"},
		"encrypted":           {func(_ *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) { v.LUKS = v.FS }, "must both be encrypted, or neither"},
		"another file system": {func(s *volume.Spec, _ *lvm.LogicalVolume, _ *volume.Tags) { s.FSType = volume.Ext4 }, "was created with xfs, and a copy of it cannot be ext4"},
		"not encrypted":       {func(s *volume.Spec, _ *lvm.LogicalVolume, _ *volume.Tags) { s.Encrypted = true }, "must both be encrypted, or neither"},
		"another cluster's":   {func(_ *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) { v.Cluster = "d" }, `was created for cluster "d", not for "c"`},
		"no cluster's":        {func(_ *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) { v.Cluster = "" }, `for cluster ""`},
		"another tenant's":    {func(_ *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) { v.Namespace = "db" }, `belongs to namespace "db", not to "shop"`},
		"a replica":           {func(_ *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) { v.Kind = volume.Dataset }, `is of kind "dataset"`},
		"a snapshot":          {func(_ *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) { v.Kind = volume.Snapshot }, ""},
		"another tenant's snapshot": {func(_ *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) {
			v.Kind, v.Namespace = volume.Snapshot, "db"
		}, `belongs to namespace "db", not to "shop"`},
		"a snapshot of a claim that has grown": {func(s *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) {
			s.Kind = volume.Snapshot
			v.Size++
		}, ""},
		"a snapshot of a snapshot": {func(s *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) {
			s.Kind, v.Kind = volume.Snapshot, volume.Snapshot
		}, `is of kind "snapshot", and no snapshot is taken of it`},
		"linear": {func(_ *volume.Spec, l *lvm.LogicalVolume, _ *volume.Tags) {
			l.Shape = volume.Shape{Layout: volume.Linear}
		}, "is no thin volume in pool flexlvm/pool"},
		"larger than its claim says": {func(s *volume.Spec, l *lvm.LogicalVolume, _ *volume.Tags) {
			l.Size = s.DeviceSize() + l.Extent
		}, `cloneOf "source": a copy of it takes 318767104 bytes and its claim is charged for 314572800; delete the claim of the copy and ask for 204914688 or more`},
		"as large as LVM makes it": {func(s *volume.Spec, l *lvm.LogicalVolume, _ *volume.Tags) {
			l.Extent = 64 * volume.MiB
			l.Size = s.DeviceSize().RoundUp(l.Extent)
		}, ""},
		"larger than its claim says, and its copy as large": {func(s *volume.Spec, l *lvm.LogicalVolume, _ *volume.Tags) {
			l.Size, s.Size = 20*volume.GiB, 20*volume.GiB
		}, ""},
		"a snapshot of one that is larger than its claim says": {func(s *volume.Spec, l *lvm.LogicalVolume, _ *volume.Tags) {
			l.Size, s.Kind = 20*volume.GiB, volume.Snapshot
		}, ""},
		"another pool": {func(_ *volume.Spec, l *lvm.LogicalVolume, _ *volume.Tags) { l.Shape.ThinPool = "other" }, "is no thin volume in pool flexlvm/pool"},
		"a full copy of a copy-on-write snapshot": {func(s *volume.Spec, l *lvm.LogicalVolume, v *volume.Tags) {
			thick(s, l, v)
			l.Origin, v.Kind = "pvc-1", volume.Snapshot
		}, ""},
		"one that has overflowed": {func(s *volume.Spec, l *lvm.LogicalVolume, v *volume.Tags) {
			thick(s, l, v)
			l.Origin, l.Overflowed, v.Kind = "pvc-1", true, volume.Snapshot
		}, "has overflowed"},
		"another tenant's copy-on-write snapshot": {func(s *volume.Spec, l *lvm.LogicalVolume, v *volume.Tags) {
			thick(s, l, v)
			l.Origin, v.Kind, v.Namespace = "pvc-1", volume.Snapshot, "db"
		}, `belongs to namespace "db", not to "shop"`},
		"a thick volume that is in use": {thick, "is no copy-on-write snapshot"},
		"a snapshot that is a volume of its own by now": {func(s *volume.Spec, l *lvm.LogicalVolume, v *volume.Tags) {
			thick(s, l, v)
			v.Kind = volume.Snapshot
		}, "is no copy-on-write snapshot"},
		"a thin snapshot for a thick volume": {func(s *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) {
			s.Layout, s.ThinPool, v.Kind = volume.Linear, "", volume.Snapshot
		}, "is no copy-on-write snapshot"},
		"a copy-on-write snapshot of a thick volume": {func(s *volume.Spec, l *lvm.LogicalVolume, v *volume.Tags) {
			thick(s, l, v)
			s.Kind = volume.Snapshot
		}, ""},
		"one of a thin volume": {func(s *volume.Spec, _ *lvm.LogicalVolume, _ *volume.Tags) {
			s.Kind, s.Layout, s.ThinPool = volume.Snapshot, volume.Linear, ""
		}, "so it cannot have a copy-on-write snapshot"},
		"grown": {func(_ *volume.Spec, _ *lvm.LogicalVolume, v *volume.Tags) { v.Size++ }, "holds 67108865 bytes by now and the copy 67108864"},
	} {
		s, tags := cloneSpec(), sourceTags()
		lv := lvm.LogicalVolume{Group: "flexlvm", Name: "source", Extent: volume.DefaultExtent, Shape: volume.Shape{Layout: volume.Thin, ThinPool: "pool"}}
		if c.change != nil {
			c.change(&s, &lv, &tags)
		}
		err := checkCopyable(s, lv, tags)
		if c.says == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, ErrRefused, name)
		require.ErrorContains(t, err, c.says, name)
	}
}

// An unfinished copy is only available to the call that finishes it.
func TestAdmitHalfACopy(t *testing.T) {
	half := halfTags()
	require.NoError(t, admit(cloneSpec(), half, ""))
	grown := cloneSpec()
	grown.Size *= 2
	require.NoError(t, admit(grown, half, ""), "it is taken again, in the size that is asked for")

	plain := cloneSpec()
	plain.CloneOf = ""
	require.ErrorIs(t, admit(plain, half, ""), ErrRefused)
	half.State = volume.Ready
	require.ErrorIs(t, admit(cloneSpec(), half, ""), ErrRefused)

	lv := lvm.LogicalVolume{Group: "flexlvm", Name: "copy"}
	half.State = volume.Unreferenced
	require.ErrorContains(t, checkStateChange(lv, half, volume.Ready), "was never finished")
	require.ErrorContains(t, checkStateChange(lv, half, volume.Retained), "was never finished")
	require.NoError(t, checkStateChange(lv, half, volume.Unreferenced))
	made := volume.Tags{State: volume.Creating, Clone: half.Clone}
	require.NoError(t, checkStateChange(lv, made, volume.Unreferenced), "a person may give it up")
	require.ErrorContains(t, checkStateChange(lv, made, volume.Ready), "forget it")
	require.ErrorContains(t, checkStateChange(lv, made, volume.Retained), "forget it")
	done := sourceTags()
	done.State = volume.Unreferenced
	require.NoError(t, checkStateChange(lv, done, volume.Ready))
}

func TestCreateCloneAheadOfNothing(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	s := cloneSpec()
	s.CloneOf = ""
	require.ErrorContains(t, e.CreateCloneAhead(t.Context(), s), "cloneOf")
	s = cloneSpec()
	s.Namespace = ""
	require.ErrorContains(t, e.CreateCloneAhead(t.Context(), s), "namespace")
	s = cloneSpec()
	s.Reserve = 30
	require.ErrorContains(t, e.CreateCloneAhead(t.Context(), s), "belongs to kind snapshot")
}

// The error about an unfinished copy claims that a pod used the copy only if this node's record can be read and
// says so.
func TestUnfinishedCopyAndItsRecord(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	lv := lvm.LogicalVolume{Group: "flexlvm", Name: "copy", UUID: "u"}
	require.NoError(t, e.checkUnrecorded(lv))
	require.NoError(t, e.records.write(lv.Group, lv.Name, newRecord("u", halfTags())))
	err = e.checkUnrecorded(lv)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, "says that a pod had it")
	file := e.records.file(lv.Group, lv.Name)
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	err = e.checkUnrecorded(lv)
	require.ErrorContains(t, err, "whether a pod has had it is unknown")
	require.ErrorContains(t, err, file)
	require.NotErrorIs(t, err, ErrDamaged)
}
