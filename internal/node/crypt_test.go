package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	testingexec "k8s.io/utils/exec/testing"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/luks/lukstest"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func encryptedTags(state volume.State, uuid string) volume.Tags {
	return volume.Tags{State: state, FS: "0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11", LUKS: uuid, Size: volume.GiB, Namespace: "n", Kind: volume.Claim}
}

// A container is only formatted if none was finished, and for a volume in state creating that no pod has had.
func TestHeader(t *testing.T) {
	device := func(content []byte) lvm.Device {
		file := filepath.Join(t.TempDir(), "device")
		require.NoError(t, os.WriteFile(file, content, 0o600))
		return lvm.Device{Path: file}
	}
	const other = "2d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"
	xfs := append([]byte("XFSB"), make([]byte, 64<<10)...)
	for name, content := range map[string][]byte{"a header": lukstest.Header(), "a file system": xfs, "nothing": make([]byte, 64<<10)} {
		ours := lukstest.UUID
		if name == "a header" {
			for _, state := range []volume.State{volume.Creating, volume.Ready, volume.Unreferenced, volume.Retained} {
				for _, mayHoldData := range []bool{false, true} {
					whole, err := checkHeader(lvm.LogicalVolume{}, encryptedTags(state, ours), device(content), mayHoldData)
					require.NoError(t, err)
					require.True(t, whole, "it is this one's, %s", state)
				}
			}
			ours = other
		}
		for _, state := range []volume.State{volume.Creating, volume.Ready, volume.Unreferenced, volume.Retained} {
			for _, mayHoldData := range []bool{false, true} {
				whole, err := checkHeader(lvm.LogicalVolume{}, encryptedTags(state, ours), device(content), mayHoldData)
				require.False(t, whole)
				if state == volume.Creating && !mayHoldData {
					require.NoError(t, err, name)
					continue
				}
				require.ErrorIs(t, err, ErrDamaged, "%s, %s, handed out: %t", name, state, mayHoldData)
				require.ErrorContains(t, err, "is not formatted again")
			}
		}
		half := encryptedTags(volume.Creating, ours)
		half.Clone = other
		_, err := checkHeader(lvm.LogicalVolume{}, half, device(content), false)
		require.ErrorIs(t, err, ErrDamaged, "a copy is never formatted")
	}

	// An unreadable header allows no conclusion.
	for _, unreadable := range []lvm.Device{device([]byte("short")), {Path: "/nowhere"}} {
		whole, err := checkHeader(lvm.LogicalVolume{}, encryptedTags(volume.Creating, other), unreadable, false)
		require.False(t, whole)
		require.Error(t, err)
		require.NotErrorIs(t, err, ErrDamaged)
	}
}

// Without a key nothing is looked up, and no program runs.
func TestNoKey(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	spec := volume.Spec{Group: "g", Name: "a", Size: volume.GiB, Layout: volume.Linear, Kind: volume.Claim, Namespace: "n", Encrypted: true}
	target := t.TempDir()
	require.ErrorIs(t, e.Mount(t.Context(), spec, MountRequest{Target: target}), ErrNoKey)
	copied := cloneSpec()
	copied.Encrypted = true
	require.ErrorIs(t, e.CreateCloneAhead(t.Context(), copied), ErrNoKey)
	_, err = e.open(t.Context(), lvm.Device{Path: "/dev/null"}, encryptedTags(volume.Ready, lukstest.UUID), luks.Key{})
	require.ErrorIs(t, err, ErrNoKey)
	c, err := e.open(t.Context(), lvm.Device{Path: "/dev/null", Number: 7}, encryptedTags(volume.Ready, ""), luks.Key{})
	require.NoError(t, err)
	require.Equal(t, "/dev/null", c.path, "it is not encrypted")
	require.EqualValues(t, 7, c.number)
}

// A spec for an encrypted volume only matches an encrypted volume, and any other spec only an unencrypted
// one.
func TestAdmitEncrypted(t *testing.T) {
	spec := volume.Spec{Group: "g", Name: "a", Size: volume.GiB, Layout: volume.Linear, Kind: volume.Claim, Namespace: "n", Encrypted: true}
	require.NoError(t, admit(spec, encryptedTags(volume.Ready, lukstest.UUID), ""))
	require.ErrorContains(t, admit(spec, encryptedTags(volume.Ready, ""), ""), "is not encrypted, so this is not the volume")
	spec.Encrypted = false
	require.NoError(t, admit(spec, encryptedTags(volume.Ready, ""), ""))
	require.ErrorContains(t, admit(spec, encryptedTags(volume.Ready, lukstest.UUID), ""), "only the CSI driver mounts it")
}

// The record contains what is needed to find the container without LVM.
func TestRecordOfAnEncryptedVolume(t *testing.T) {
	tags := encryptedTags(volume.Ready, lukstest.UUID)
	d := records(t.TempDir())
	require.NoError(t, d.write("g", "a", newRecord("uuid", tags)))
	rec, err := d.read("g", "a")
	require.NoError(t, err)
	require.Equal(t, tags, rec.tags())
}

// If the record and the header are lost, nothing distinguishes an encrypted volume that a pod has written to
// from an unfinished one, so its tags say ready before it is handed out.
func TestEncryptedIsReadyBeforeItIsHandedOut(t *testing.T) {
	for name, uuid := range map[string]string{"encrypted": lukstest.UUID, "not encrypted": ""} {
		t.Run(name, func(t *testing.T) {
			disk := filepath.Join(t.TempDir(), "disk")
			require.NoError(t, os.WriteFile(disk, nil, 0o600))
			group, tagged := &fakeGroup{device: disk}, 0
			host := noPrograms(t)
			host.Unkillable = commandtest.Func(func(argv ...string) (string, error) {
				if argv[0] == "lvchange" {
					require.Contains(t, argv, "flexlvm.state=ready")
					tagged++
				}
				return group.run(argv...)
			})
			e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir(), Settle: func(volume.Group, volume.Name) {}}, host)
			require.NoError(t, err)
			f := openedVolume{device: lvm.Device{Group: "flexlvm", Name: "a", VolumeUUID: "uuid"}, tags: encryptedTags(volume.Creating, uuid)}
			require.NoError(t, e.recordMountable(t.Context(), f))
			rec, err := e.records.read("flexlvm", "a")
			require.NoError(t, err)
			if uuid == "" {
				require.Zero(t, tagged, "that is done in the background")
				require.Equal(t, volume.Creating, rec.State)
				return
			}
			require.Equal(t, 1, tagged)
			require.Equal(t, volume.Ready, rec.State)
		})
	}
}

// A stale node in /dev would lead to another volume's content, which would be formatted.
func TestMappingByAStaleNode(t *testing.T) {
	var null unix.Stat_t
	require.NoError(t, unix.Stat("/dev/null", &null))
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	tags, link := encryptedTags(volume.Creating, lukstest.UUID), filepath.Join(t.TempDir(), "mapping")
	require.NoError(t, os.Symlink("/dev/null", link))
	c, err := e.contentOn(lvm.Device{}, dm.Mapping{Name: "mapping", Path: link, Number: null.Rdev}, tags)
	require.NoError(t, err)
	require.Equal(t, link, c.path)
	require.Equal(t, null.Rdev, c.number)

	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink("/dev/zero", link))
	_, err = e.contentOn(lvm.Device{}, dm.Mapping{Name: "mapping", Path: link, Number: null.Rdev}, tags)
	require.ErrorContains(t, err, "it leads to device 1:5, and the mapping is 1:3; run `dmsetup mknodes mapping`")
	require.NoError(t, os.Remove(link))
	_, err = e.contentOn(lvm.Device{}, dm.Mapping{Name: "mapping", Path: link, Number: null.Rdev}, tags)
	require.ErrorContains(t, err, "dmsetup mknodes mapping")
}

// A mapping without a table, which a killed cryptsetup has left, is removed, and the container opened. A mapping
// that is anything else stays.
func TestOpenOverAnEmptyMapping(t *testing.T) {
	d, tags := lvm.Device{Path: "/dev/mapper/g-a", VolumeUUID: "Zk2Q1s-8hVb-Pq1C-2dLc-9Xwq-TfKo-a1B2c3"}, encryptedTags(volume.Ready, lukstest.UUID)
	name := dm.CryptName(d.VolumeUUID)
	uuid := "CRYPT-LUKS2-" + strings.ReplaceAll(lukstest.UUID, "-", "") + "-" + name
	key, err := luks.NewKey([]byte(strings.Repeat("k", luks.MinKey)))
	require.NoError(t, err)
	for info, opens := range map[string]bool{
		uuid + ",None,0":            true,
		uuid + ",Live,0":            false,
		uuid + ",None,1":            false,
		"OTHER-" + name + ",None,0": false,
	} {
		there := true
		host := commandtest.Func(func(argv ...string) (string, error) {
			switch argv[0] + " " + argv[1] {
			case "dmsetup info":
				return info, nil
			case "dmsetup remove":
				require.True(t, opens, info)
				require.Equal(t, name, argv[2])
				there = false
			case "cryptsetup open":
				if there {
					return "", &testingexec.FakeExitError{Status: 5}
				}
			default:
				t.Errorf("ran %s", argv)
			}
			return "", nil
		})
		e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, command.Programs{Unkillable: host, Killable: host})
		require.NoError(t, err)
		err = e.openContainer(t.Context(), d, tags, key)
		require.Equal(t, opens, err == nil, "%s: %v", info, err)
		if !opens {
			require.ErrorIs(t, err, luks.ErrBusy)
		}
	}
}

// A mapping whose state dmsetup does not tell is not removed. The container is opened if the mapping has vanished.
func TestOpenOverAnUnknownMapping(t *testing.T) {
	d, tags := lvm.Device{Path: "/dev/mapper/g-a", VolumeUUID: "Zk2Q1s-8hVb-Pq1C-2dLc-9Xwq-TfKo-a1B2c3"}, encryptedTags(volume.Ready, lukstest.UUID)
	key, err := luks.NewKey([]byte(strings.Repeat("k", luks.MinKey)))
	require.NoError(t, err)
	for _, vanishes := range []bool{false, true} {
		opened := 0
		host := commandtest.Func(func(argv ...string) (string, error) {
			switch argv[0] + " " + argv[1] {
			case "dmsetup info":
				return "", errors.New("device does not exist")
			case "cryptsetup open":
				if opened++; opened == 1 || !vanishes {
					return "", &testingexec.FakeExitError{Status: 5}
				}
			default:
				t.Errorf("ran %s", argv)
			}
			return "", nil
		})
		e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, command.Programs{Unkillable: host, Killable: host})
		require.NoError(t, err)
		err = e.openContainer(t.Context(), d, tags, key)
		require.Equal(t, 2, opened)
		require.Equal(t, vanishes, err == nil, "%v", err)
		if !vanishes {
			require.ErrorIs(t, err, luks.ErrBusy)
			require.NotContains(t, err.Error(), "does not exist")
		}
	}
}
