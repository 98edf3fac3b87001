package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A torn record, whatever is left of it, counts as that of a volume which a pod has had.
func TestRecordsThatAreTorn(t *testing.T) {
	d := records(t.TempDir())
	e := &Engine{records: d}
	lv := lvm.LogicalVolume{Group: "flexlvm", Name: "data", UUID: "some-uuid"}
	recorded, err := e.isRecorded(lv)
	require.NoError(t, err)
	require.False(t, recorded)

	require.NoError(t, d.write(lv.Group, lv.Name, newRecord(lv.UUID, sourceTags())))
	whole, err := os.ReadFile(d.file(lv.Group, lv.Name))
	require.NoError(t, err)
	for name, left := range map[string][]byte{
		"empty":            {},
		"torn":             whole[:len(whole)/2],
		"zeroes":           make([]byte, len(whole)),
		"of no volume":     []byte(`{"state":"ready"}`),
		"of no state":      []byte(`{"volumeUUID":"some-uuid"}`),
		"of nothing":       []byte("null\n"),
		"something else's": []byte("ready\n"),
	} {
		require.NoError(t, os.WriteFile(d.file(lv.Group, lv.Name), left, 0o600))
		recorded, err := e.isRecorded(lv)
		require.ErrorContains(t, err, "read record", name)
		require.True(t, recorded, name)

		// It is unknown then whether a volume in state creating was handed out.
		tags := sourceTags()
		tags.State = volume.Creating
		_, err = e.ensureSettled(t.Context(), lv, tags)
		require.ErrorContains(t, err, "its next mount writes it again", name)
		tags.State = volume.Ready
		got, err := e.ensureSettled(t.Context(), lv, tags)
		require.NoError(t, err, "a volume that is ready is settled, whatever its record is")
		require.Equal(t, tags, got)
	}
}

// A mount asks LVM about a raw block volume whose record says creating: its tags may say ready.
func TestMountableByItsRecord(t *testing.T) {
	for state, want := range map[volume.State]struct{ xfs, raw bool }{
		volume.Creating:     {true, false},
		volume.Ready:        {true, true},
		volume.Unreferenced: {},
		volume.Retained:     {},
		volume.Doomed:       {},
	} {
		require.Equal(t, want.xfs, record{State: state, FSType: volume.XFS}.mountable(), state)
		require.Equal(t, want.raw, record{State: state, FSType: volume.Raw}.mountable(), state)
	}
}

// A release that is killed before it changes the tags of a volume that was handed out and is not settled
// leaves tags in state creating and a record in state unreferenced. The volume may hold data: it is not
// formatted, and becomes ready, so that a person can bring it back. A raw block volume in that state was
// never handed out, because it is ready before that (recordMountable).
func TestKilledReleaseOfAVolumeThatIsNotSettled(t *testing.T) {
	for name, c := range map[string]struct {
		fs        volume.FSType
		published bool
		want      volume.State
	}{
		"XFS, with data":  {volume.XFS, true, volume.Ready},
		"raw, not zeroed": {volume.Raw, false, volume.Creating},
	} {
		t.Run(name, func(t *testing.T) {
			tags := sourceTags()
			tags.State, tags.FSType = volume.Creating, c.fs
			disk := filepath.Join(t.TempDir(), "disk")
			require.NoError(t, os.WriteFile(disk, nil, 0o600))
			group := &fakeGroup{device: disk, lvs: []fakeLV{{name: "data", uuid: "some-uuid", attr: "-wi-a-----", size: "67108864", tags: strings.Join(tags.Strings(), ",")}}}
			host := noPrograms(t)
			host.Unkillable = commandtest.Func(group.run)
			e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir(), Settle: func(volume.Group, volume.Name) {}, After: func(step string) {
				if step == "record unreferenced" {
					panic(step)
				}
			}}, host)
			require.NoError(t, err)
			if c.published {
				require.NoError(t, e.recordMountable(t.Context(), openedVolume{device: lvm.Device{Group: "flexlvm", Name: "data", VolumeUUID: "some-uuid"}, tags: tags}))
			}
			require.Panics(t, func() {
				_ = e.Release(t.Context(), Ref{Group: "flexlvm", Name: "data", Cluster: tags.Cluster}, volume.Unreferenced, volume.Disposal{})
			})
			rec, err := e.records.read("flexlvm", "data")
			require.NoError(t, err)
			require.Equal(t, volume.Unreferenced, rec.State)
			lv, err := e.lvm.Volume(t.Context(), "flexlvm", "data")
			require.NoError(t, err)
			now, err := ownedTags(lv)
			require.NoError(t, err)
			require.Equal(t, volume.Creating, now.State)

			mayHoldData, err := e.mayHoldData(lv, now)
			require.NoError(t, err)
			require.True(t, mayHoldData)
			settled, err := e.ensureSettled(t.Context(), lv, now)
			require.NoError(t, err)
			require.Equal(t, c.want, settled.State)
		})
	}
}

// A record that cannot be written does not prevent a mount of a ready volume. A new volume is not handed out
// without its record, because only the record keeps it from being formatted again.
func TestRecordsThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	var logged bytes.Buffer
	log := logrus.New()
	log.SetOutput(&logged)
	host := noPrograms(t)
	host.Unkillable = commandtest.Func((&fakeGroup{device: file}).run)
	e, err := New(Config{StateDir: file, LockDir: t.TempDir(), Log: log, Settle: func(volume.Group, volume.Name) {}}, host)
	require.NoError(t, err)
	f := openedVolume{device: lvm.Device{Group: "flexlvm", Name: "data", VolumeUUID: "some-uuid"}, tags: sourceTags()}

	require.NoError(t, e.recordMountable(t.Context(), f))
	require.Contains(t, logged.String(), "could not be written")
	logged.Reset()
	e.touch("flexlvm", "data")
	require.Contains(t, logged.String(), "could not be written")

	f.tags.State = volume.Creating
	require.ErrorContains(t, e.recordMountable(t.Context(), f), "volume flexlvm/data is new and is not handed out before it is on record")
	f.recorded = true
	require.NoError(t, e.recordMountable(t.Context(), f), "a pod has had it before")
}

// The tags of a volume may be from a call that was killed before it flushed them. The record, on another
// disk, and a caller that got a success must not be ahead of what is durable.
func TestTagsAreFlushedBeforeTheyAreReliedOn(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	host := noPrograms(t)
	host.Unkillable = commandtest.Func((&fakeGroup{device: disk}).run)
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, host)
	require.NoError(t, err)
	f := openedVolume{device: lvm.Device{Group: "flexlvm", Name: "data", VolumeUUID: "some-uuid"}, tags: sourceTags()}
	f.tags.State = volume.Ready
	lv := lvm.LogicalVolume{Group: "flexlvm", Name: "data", UUID: "some-uuid"}
	recorded := func() bool {
		_, err := e.records.read("flexlvm", "data")
		require.True(t, err == nil || errors.Is(err, os.ErrNotExist), err)
		return err == nil
	}
	for name, call := range map[string]func() error{
		"hand out":       func() error { return e.recordMountable(t.Context(), f) },
		"grow once more": func() error { return e.recordRawSize(t.Context(), lv, f.tags.Size, f.tags) },
	} {
		require.ErrorContains(t, call(), "may not last over a power cut", name) // there is no disk
	}
	require.False(t, recorded())
	require.NoError(t, os.WriteFile(disk, nil, 0o600))
	require.NoError(t, e.recordMountable(t.Context(), f))
	require.True(t, recorded())
}
