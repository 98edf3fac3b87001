package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/luks/lukstest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The record contains what is needed to find the file system without LVM. Records of older releases have no
// type, which means XFS.
func TestRecordOfAnExt4Volume(t *testing.T) {
	tags := encryptedTags(volume.Ready, lukstest.UUID)
	tags.FSType = volume.Ext4
	d := records(t.TempDir())
	require.NoError(t, d.write("g", "a", newRecord("uuid", tags)))
	rec, err := d.read("g", "a")
	require.NoError(t, err)
	require.Equal(t, tags, rec.tags())
	tags.FSType = volume.XFS
	text, err := json.Marshal(newRecord("uuid", tags))
	require.NoError(t, err)
	require.NotContains(t, string(text), "fsType")
}

func TestAdmitByFileSystem(t *testing.T) {
	spec := volume.Spec{Group: "g", Name: "a", Size: volume.GiB, Layout: volume.Linear, Kind: volume.Claim, Namespace: "n"}
	tags := encryptedTags(volume.Ready, "")
	require.NoError(t, admit(spec, tags, ""))
	tags.FSType = volume.Ext4
	require.ErrorContains(t, admit(spec, tags, ""), `fsType "xfs": volume g/a was made with ext4`)
	spec.FSType = volume.Ext4
	require.NoError(t, admit(spec, tags, ""))
	tags.FSType = volume.XFS
	require.ErrorContains(t, admit(spec, tags, ""), `fsType "ext4": volume g/a was made with xfs`)
}

// The copies of a superblock are marked only once, and a marked copy does not count as a file system.
func TestExt4DeviceThatHoldsNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "device")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, int64(256*volume.MiB)))
	tags := volume.Tags{FS: copyFS, Size: volume.MiB, FSType: volume.Ext4}
	_, err := ext4Kind{}.uuid(path)
	require.ErrorIs(t, err, errNoFilesystem)
	_, err = ext4Kind{}.usedAt(path, use{tags: tags})
	require.ErrorIs(t, err, errNoFilesystem)
	written, err := ext4Kind{}.markUsed(path, tags)
	require.ErrorContains(t, err, "there are none of the file system")
	require.False(t, written)
	_, err = ext4Kind{}.uuid(path + "-gone")
	require.NotErrorIs(t, err, errNoFilesystem)
}
