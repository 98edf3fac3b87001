package nfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// pvNamed returns a PersistentVolume that somebody has created by hand.
func pvNamed(name string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	out := &corev1.PersistentVolume{}
	out.Name, out.UID, out.Spec.PersistentVolumeSource = name, "u2", source
	return out
}

func nfsSource(server, path string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: server, Path: path}}
}

func csiSource(attributes map[string]string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "nfs.csi.k8s.io", VolumeAttributes: attributes}}
}

const ownPath = "/srv/team-data-" + pvName

// A directory that another PersistentVolume names is neither removed nor renamed.
func TestDirectoryOfTwoVolumes(t *testing.T) {
	for name, source := range map[string]corev1.PersistentVolumeSource{
		"same":         nfsSource("b", ownPath),
		"spelled":      nfsSource("B.", "/srv/./x/..//team-data-"+pvName+"/"),
		"below":        nfsSource("b", ownPath+"/sub"),
		"export":       nfsSource("b", "/srv"),
		"root":         nfsSource("b", "/"),
		"CSI":          csiSource(map[string]string{"server": "b", "share": ownPath}),
		"subdirectory": csiSource(map[string]string{"Server": "b", "share": "/srv/", "subDir": "team-data-" + pvName}),
	} {
		for _, onDelete := range []OnDelete{Archive, Remove} {
			t.Run(name+"/"+string(onDelete), func(t *testing.T) {
				r := newRig(t)
				v, dir := r.provisioned("onDelete", string(onDelete))
				r.listed = []*corev1.PersistentVolume{v, pvNamed("shared-b", source)}
				require.ErrorContains(t, r.Delete(t.Context(), v), `PersistentVolume "shared-b" names b:/`)
				require.FileExists(t, filepath.Join(dir, "file"))
				r.Now = func() time.Time { return time.Now().Add(refusedFor) }
				r.listed = r.listed[:1]
				require.NoError(t, r.Delete(t.Context(), v), "it is gone")
				require.NoDirExists(t, dir)
			})
		}
	}
}

func TestVolumesThatLieElsewhere(t *testing.T) {
	r := newRig(t)
	v, dir := r.provisioned("onDelete", "delete")
	r.listed = []*corev1.PersistentVolume{
		v, pvNamed("server", nfsSource("a", ownPath)), pvNamed("longer", nfsSource("b", ownPath+"x")), pvNamed("shorter", nfsSource("b", "/sr")),
		pvNamed("archived", nfsSource("b", "/srv/archived-team-data-"+pvName)), pvNamed("beside", csiSource(map[string]string{"server": "b", "share": "/srv", "subdir": "else"})),
		pvNamed("no share", csiSource(map[string]string{"server": "b"})), pvNamed("no attributes", csiSource(nil)), pvNamed("no source", corev1.PersistentVolumeSource{}),
	}
	require.NoError(t, r.Delete(t.Context(), v))
	require.NoDirExists(t, dir)
}

func TestSpellingsOfServers(t *testing.T) {
	for spelling, want := range map[string]string{
		"NFS.example.org.": "nfs.example.org", "[FD00:0::1]": "fd00::1", "::ffff:10.0.0.1": "10.0.0.1", "10.0.0.1": "10.0.0.1",
	} {
		require.Equal(t, want, canonicalServer(spelling))
	}
}

func TestDisposalWithoutAListOfVolumes(t *testing.T) {
	for _, onDelete := range []OnDelete{Archive, Remove} {
		r := newRig(t)
		v, dir := r.provisioned("onDelete", string(onDelete))
		r.onList = func() error { return errors.New("away") }
		require.ErrorContains(t, r.Delete(t.Context(), v), "check whether another PersistentVolume names the directory: away")
		require.FileExists(t, filepath.Join(dir, "file"))
		r.onList = nil
		require.NoError(t, r.Delete(t.Context(), v), "a list that failed shows nothing")
	}
}

// PersistentVolumes are listed only if a directory is about to be renamed, and for refused removals not each time.
func TestListsOfVolumesForRemovals(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	r.Now = func() time.Time { return now }
	v, dir := r.provisioned("onDelete", "delete")
	r.lists, r.listed = 0, []*corev1.PersistentVolume{v, pvNamed("shared-b", nfsSource("b", ownPath))}
	for range 3 {
		require.ErrorContains(t, r.Delete(t.Context(), v), "shared-b")
	}
	require.Equal(t, 1, r.lists)
	now = now.Add(refusedFor)
	require.ErrorContains(t, r.Delete(t.Context(), v), "shared-b")
	require.Equal(t, 2, r.lists)

	require.NoError(t, os.Rename(dir, filepath.Join(filepath.Dir(dir), doomedPrefix+filepath.Base(dir))))
	now = now.Add(refusedFor)
	require.NoError(t, r.Delete(t.Context(), v), "its removal has begun")
	require.NoError(t, r.Delete(t.Context(), v), "it is gone")
	require.Equal(t, 2, r.lists)
}

// Removals that begin while a list is being read share the next list, not that one: it may have been read before a
// PersistentVolume was created.
func TestRemovalsShareAList(t *testing.T) {
	r := newRig(t)
	v, _ := r.provisioned()
	r.lists = 0
	r.Now = func() time.Time { r.looks.Add(1); return time.Now() }
	var busy sync.WaitGroup
	begin := func() { busy.Go(func() { require.ErrorContains(t, r.checkUnshared(t.Context(), v), "shared-b") }) }
	r.onList = func() error {
		r.onList = nil
		before := r.looks.Load()
		for range 3 {
			begin()
		}
		require.Eventually(t, func() bool { return r.looks.Load() == before+3 }, time.Minute, time.Millisecond)
		r.listed = []*corev1.PersistentVolume{pvNamed("shared-b", nfsSource("b", ownPath))}
		return nil
	}
	require.NoError(t, r.checkUnshared(t.Context(), v))
	busy.Wait()
	require.Equal(t, 2, r.lists)
}

// Somebody moves a directory back in its place while it is being removed, and creates a PersistentVolume for it.
func TestDirectoryThatIsPutBack(t *testing.T) {
	r := newRig(t)
	v, dir := r.provisioned("onDelete", "delete")
	for i := range atOnce + 1 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o644))
	}
	r.onRead = func() {
		if os.Rename(filepath.Join(filepath.Dir(dir), doomedPrefix+filepath.Base(dir)), dir) == nil {
			r.listed = []*corev1.PersistentVolume{v, pvNamed("rescue", nfsSource("b", ownPath))}
		}
	}
	require.ErrorContains(t, r.Delete(t.Context(), v), "was put back in its place")
	require.ErrorContains(t, r.Delete(t.Context(), v), `PersistentVolume "rescue"`)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.NotEmpty(t, left)
}

// Somebody decides to keep a directory while all PersistentVolumes are being listed.
func TestDirectoryThatIsToBeKeptAfterTheList(t *testing.T) {
	for _, onDelete := range []OnDelete{Archive, Remove} {
		r := newRig(t)
		v, dir := r.provisioned("onDelete", string(onDelete))
		seen := v.DeepCopy()
		r.onList = func() error {
			r.now.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			return nil
		}
		require.IsType(t, &controller.IgnoredError{}, r.Delete(t.Context(), seen))
		require.FileExists(t, filepath.Join(dir, "file"))
	}
}
