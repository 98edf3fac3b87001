package nfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
)

// While a large directory is being removed, somebody decides to keep it. What is left is kept.
func TestRemovalOfWhatIsToBeKeptByNow(t *testing.T) {
	tests := map[string]struct {
		change func(r *rig)
		want   string // empty: ignored
	}{
		"policy":  {func(r *rig) { r.now.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain }, ""},
		"archive": {func(r *rig) { r.now.Annotations[AnnotationOnDelete] = "archive" }, "annotation nfs.flexlvm.io/on-delete has changed from delete to archive"},
		"retain":  {func(r *rig) { r.now.Annotations[AnnotationOnDelete] = "retain" }, "annotation nfs.flexlvm.io/on-delete has changed from delete to retain"},
		"silence": {func(r *rig) { r.failure = errors.New("away") }, "away"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			v, dir := r.provisioned("onDelete", "delete")
			v = v.DeepCopy()
			for i := range atOnce + 1 {
				require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o644))
			}
			doomed := filepath.Join(filepath.Dir(dir), doomedPrefix+filepath.Base(dir))
			r.onRead = func() {
				if _, err := os.Lstat(doomed); err == nil { // after the first step
					tt.change(r)
				}
			}
			err := r.Delete(t.Context(), v)
			if tt.want == "" {
				require.IsType(t, &controller.IgnoredError{}, err, "the library does not unwrap it")
			} else {
				require.ErrorContains(t, err, tt.want)
			}
			left, err := os.ReadDir(doomed)
			require.NoError(t, err)
			require.NotEmpty(t, left)
			if name == "retain" {
				require.ErrorContains(t, r.Delete(t.Context(), v), "a part of it was removed, and the rest is called "+filepath.Base(doomed))
				require.DirExists(t, doomed)
			}
			if name != "archive" {
				return
			}
			require.NoError(t, r.Delete(t.Context(), v))
			kept, err := os.ReadDir(filepath.Join(filepath.Dir(dir), archivedPrefix+filepath.Base(dir)))
			require.NoError(t, err)
			require.Len(t, kept, len(left))
		})
	}
}

// The server exports another disk than it did, which is also flexlvm's, or an export restored from an older backup.
func TestDeleteInAnotherExport(t *testing.T) {
	for _, onDelete := range []string{"archive", "delete"} {
		r := newRig(t)
		v, dir := r.provisioned("onDelete", onDelete)
		aside := filepath.Join(t.TempDir(), "aside")
		require.NoError(t, errors.Join(os.Rename(dir, aside), os.Remove(filepath.Join(r.Exports[1].Dir, nfsmark.Dir, pvName))))
		require.NoError(t, r.Delete(t.Context(), v))
		require.Contains(t, r.event(), "Warning DirectoryMissing the claim is gone, and neither its directory b:/srv/team-data-"+pvName+" nor its mark is there")
		require.Empty(t, r.event())
	}
	r := newRig(t)
	v, _ := r.provisioned()
	for range 2 { // the PersistentVolume could not be deleted
		require.NoError(t, r.Delete(t.Context(), v))
		require.Contains(t, r.event(), "Normal DirectoryArchived")
		require.Empty(t, r.event())
	}
}

// The same while a directory is being removed.
func TestRemovalWhoseExportIsExchanged(t *testing.T) {
	r := newRig(t)
	v, dir := r.provisioned("onDelete", "delete")
	for i := range atOnce + 1 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o644))
	}
	aside := filepath.Join(t.TempDir(), "aside")
	r.onRead = func() {
		if os.Rename(filepath.Join(filepath.Dir(dir), doomedPrefix+filepath.Base(dir)), aside) == nil {
			require.NoError(t, os.Remove(filepath.Join(r.Exports[1].Dir, nfsmark.Dir, pvName)))
		}
	}
	require.NoError(t, r.Delete(t.Context(), v))
	require.DirExists(t, aside)
	require.Contains(t, r.event(), "nor its mark is there")
}
