package nfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/nfsmark"
)

// rig is a provisioner with two exports, which are local directories.
type rig struct {
	*Provisioner
	t       *testing.T
	events  *record.FakeRecorder
	now     *corev1.PersistentVolume // PersistentVolume in the API
	failure error
	onRead  func()                     // called before each read of now; may be nil
	listed  []*corev1.PersistentVolume // PersistentVolumes in the API
	lists   int
	onList  func() error // called by each list; may be nil
	refused int
	putOff  []string     // classes of the removals that are put off
	looks   atomic.Int64 // number of reads of the clock
}

func newRig(t *testing.T) *rig {
	base := t.TempDir()
	for _, dir := range []string{"1", "2"} {
		require.NoError(t, os.MkdirAll(filepath.Join(base, dir, "precious"), 0o755))
	}
	r := &rig{t: t, events: record.NewFakeRecorder(10)}
	r.Provisioner = NewProvisioner(Parts{
		Exports:   exportsOf(t, "a:/srv="+filepath.Join(base, "1"), "b:/srv="+filepath.Join(base, "2")),
		Cluster:   "here",
		IOTimeout: time.Minute, MaxWaiting: 2, MaxLong: 1, Events: r.events, Now: time.Now,
		Volume: func(context.Context, string) (*corev1.PersistentVolume, error) {
			if r.onRead != nil {
				r.onRead()
			}
			if r.failure != nil {
				return nil, r.failure
			}
			return r.now.DeepCopy(), nil
		},
		EachVolume: func(_ context.Context, do func(*corev1.PersistentVolume)) error {
			r.lists++
			for _, v := range r.listed {
				do(v)
			}
			if r.onList != nil {
				return r.onList()
			}
			return nil
		},
		Refused: func(*controlplane.Refusal) { r.refused++ },
		PutOff:  func(class string) { r.putOff = append(r.putOff, class) },
	})
	t.Cleanup(func() {
		require.DirExists(t, filepath.Join(base, "1", "precious"))
		require.DirExists(t, filepath.Join(base, "2", "precious"))
	})
	return r
}

// provisioned creates a volume in the second export, and releases it.
func (r *rig) provisioned(parameters ...string) (v *corev1.PersistentVolume, dir string) {
	r.t.Helper()
	v, state, err := r.Provision(r.t.Context(), controller.ProvisionOptions{
		PVName: pvName, PVC: claimOf(corev1.ReadWriteMany), StorageClass: classOf(r.Exports[1], parameters...),
	})
	require.NoError(r.t, err)
	require.Equal(r.t, controller.ProvisioningFinished, state)
	v.UID, v.Status.Phase = "u1", corev1.VolumeReleased
	r.now = v
	dir = filepath.Join(r.Exports[1].Dir, filepath.Base(v.Spec.NFS.Path))
	require.DirExists(r.t, dir)
	require.NoError(r.t, os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o644))
	return v, dir
}

func (r *rig) event() string {
	select {
	case e := <-r.events.Events:
		return e
	default:
		return ""
	}
}

func TestProvisionAndDelete(t *testing.T) {
	r := newRig(t)
	v, dir := r.provisioned("onDelete", "delete")
	require.NoError(t, r.Delete(t.Context(), v))
	require.NoDirExists(t, dir)
	require.Empty(t, r.event())
	require.NoError(t, r.Delete(t.Context(), v), "again")
	require.Contains(t, r.event(), "unless a removal was interrupted at its end")

	v, dir = r.provisioned("onDelete", "retain")
	require.NoError(t, r.Delete(t.Context(), v))
	require.FileExists(t, filepath.Join(dir, "file"))
	require.Contains(t, r.event(), "DirectoryRetained the claim is gone; directory b:/srv/team-data-"+pvName+" stays")

	r = newRig(t)
	v, dir = r.provisioned() // archive is the default
	require.NoError(t, r.Delete(t.Context(), v))
	require.NoDirExists(t, dir)
	require.FileExists(t, filepath.Join(filepath.Dir(dir), "archived-"+filepath.Base(dir), "file"))
	require.Contains(t, r.event(), "DirectoryArchived the claim is gone; its directory is kept as b:/srv/archived-team-data-"+pvName)

	for _, onDelete := range []string{"archive", "delete"} {
		r = newRig(t)
		v, dir = r.provisioned("onDelete", onDelete)
		require.NoError(t, os.RemoveAll(dir))
		require.NoError(t, r.Delete(t.Context(), v))
		require.Contains(t, r.event(), "Warning DirectoryMissing the claim is gone, and its directory b:/srv/team-data")
	}
}

// A PersistentVolume that was copied to another cluster is released there, because its claim does not exist there.
// Its directory must stay.
func TestDeleteOfADirectoryOfAnotherCluster(t *testing.T) {
	for _, onDelete := range []string{"archive", "delete"} {
		r := newRig(t)
		v, dir := r.provisioned("onDelete", onDelete)
		r.Cluster = "elsewhere"
		require.ErrorContains(t, r.Delete(t.Context(), v), `is of another cluster, whose namespace kube-system has the UID "here"`)
		require.FileExists(t, filepath.Join(dir, "file"))

		r.mark(func(m *nfsmark.Mark) { m.Cluster = "" }) // as earlier releases wrote it
		require.NoError(t, r.Delete(t.Context(), v))
		require.NoDirExists(t, dir)
	}
}

// mark changes the mark of the volume in the second export.
func (r *rig) mark(change func(*nfsmark.Mark)) {
	r.t.Helper()
	root, err := os.OpenRoot(r.Exports[1].Dir)
	require.NoError(r.t, err)
	defer root.Close()
	m, marked, err := nfsmark.Read(root, pvName)
	require.NoError(r.t, err)
	require.True(r.t, marked)
	change(&m)
	require.NoError(r.t, m.Write(root))
}

func TestProvisionRefuses(t *testing.T) {
	r := newRig(t)
	class := classOf(Export{Server: "c", Path: "/srv"})
	_, state, err := r.Provision(t.Context(), controller.ProvisionOptions{PVName: pvName, PVC: claimOf(corev1.ReadWriteMany), StorageClass: class})
	require.ErrorContains(t, err, `StorageClass "shared"`)
	require.ErrorContains(t, err, "which has a:/srv, b:/srv")
	require.Equal(t, controller.ProvisioningFinished, state)
	require.Equal(t, 1, r.refused)
}

// A claim whose server does not respond is not rescheduled: its directory may exist.
func TestProvisionWithASilentServer(t *testing.T) {
	r := newRig(t)
	g := newGate(r.Exports[1], time.Second, 1, time.Now)
	r.gates[r.Exports[1].String()] = g
	answers := make(chan struct{})
	require.ErrorIs(t, g.do(t.Context(), "another", func(context.Context, *os.Root) error { <-answers; return nil }), errSilent)
	o := controller.ProvisionOptions{PVName: pvName, PVC: claimOf(corev1.ReadWriteMany), StorageClass: classOf(r.Exports[1])}
	_, state, err := r.Provision(t.Context(), o)
	require.ErrorContains(t, err, "the server does not answer")
	require.Equal(t, controller.ProvisioningInBackground, state)

	o.StorageClass = classOf(r.Exports[0]) // others are served meanwhile
	_, _, err = r.Provision(t.Context(), o)
	require.NoError(t, err)
	close(answers)

	r = newRig(t)
	require.NoError(t, os.WriteFile(filepath.Join(r.Exports[1].Dir, nfsmark.Dir), nil, 0o644))
	o.StorageClass = classOf(r.Exports[1])
	_, state, err = r.Provision(t.Context(), o)
	require.ErrorContains(t, err, `".flexlvm" is not a directory`)
	require.Equal(t, controller.ProvisioningNoChange, state, "whether there is a mark is not known")
	r.gates[r.Exports[1].String()] = newGate(Export{Dir: filepath.Join(r.Exports[1].Dir, "nothing")}, time.Minute, 1, time.Now)
	_, state, err = r.Provision(t.Context(), o)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, controller.ProvisioningNoChange, state)
}

// The server becomes silent while a directory is created, and answers when nobody waits for that any more.
func TestProvisionThatIsAnsweredLate(t *testing.T) {
	r := newRig(t)
	g := newGate(r.Exports[1], time.Second, 1, time.Now)
	r.gates[r.Exports[1].String()] = g
	r.room = func(*os.File) (room, error) {
		time.Sleep(g.ioTimeout + 200*time.Millisecond) // not by a signal of the test, which would hide a race
		return room{10 << 30, 1 << 20}, nil
	}
	_, state, err := r.enforced("3Gi")
	require.ErrorIs(t, err, errSilent)
	require.Equal(t, controller.ProvisioningInBackground, state)
	require.Eventually(t, func() bool { return g.waiting() == 0 }, time.Minute, time.Millisecond)
}

// A lateEnd is a context that ends when the directory has just been created.
type lateEnd struct{ context.Context }

func (lateEnd) Err() error { return context.Canceled }

// A directory that was created just before the process is stopped counts as provisioned.
func TestProvisionAsTheProcessEnds(t *testing.T) {
	r := newRig(t)
	v, state, err := r.Provision(lateEnd{context.Background()}, controller.ProvisionOptions{
		PVName: pvName, PVC: claimOf(corev1.ReadWriteMany), StorageClass: classOf(r.Exports[1]),
	})
	require.NoError(t, err)
	require.Equal(t, controller.ProvisioningFinished, state)
	require.DirExists(t, filepath.Join(r.Exports[1].Dir, filepath.Base(v.Spec.NFS.Path)))
}

// After the mark of its directory is written, a claim is not given up because of an error: nothing else leads to the
// directory or the mark.
func TestProvisionFailsOnceThereIsAMark(t *testing.T) {
	r := newRig(t)
	_, dir := r.provisioned()
	require.NoError(t, errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o644)))
	o := controller.ProvisionOptions{PVName: pvName, PVC: claimOf(corev1.ReadWriteMany), StorageClass: classOf(r.Exports[1])}
	_, state, err := r.Provision(t.Context(), o)
	require.ErrorContains(t, err, "is not a directory")
	require.Equal(t, controller.ProvisioningInBackground, state)
	require.NoError(t, os.Remove(filepath.Join(r.Exports[1].Dir, nfsmark.Dir, pvName)))
	_, state, err = r.Provision(t.Context(), o)
	require.ErrorContains(t, err, "was not created for this claim")
	require.Equal(t, controller.ProvisioningFinished, state, "what is there is not the claim's")
}

// A tenant can fill directories without limit. Their removal leaves workers to the directories of others, and goes on
// where it stopped.
func TestLargeDirectoriesTakeTurns(t *testing.T) {
	r := newRig(t)
	var passed time.Duration
	r.Now = func() time.Time { passed += turn; return time.Unix(0, 0).Add(passed) }
	v, dir := r.provisioned("onDelete", "delete")
	for i := range 2*atOnce + 1 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o644))
	}
	r.long <- struct{}{} // another removal is beyond its turn
	err := r.Delete(t.Context(), v)
	require.ErrorIs(t, err, errTurn)
	require.Equal(t, []string{v.Spec.StorageClassName}, r.putOff)
	var ignored *controller.IgnoredError
	require.False(t, errors.As(err, &ignored), "the library retries it")
	left, err := os.ReadDir(filepath.Join(filepath.Dir(dir), doomedPrefix+filepath.Base(dir)))
	require.NoError(t, err)
	require.Less(t, len(left), 2*atOnce)
	require.NotEmpty(t, left)

	<-r.long
	require.NoError(t, r.Delete(t.Context(), v))
	require.NoDirExists(t, filepath.Join(filepath.Dir(dir), doomedPrefix+filepath.Base(dir)))
	require.Empty(t, r.long)
	require.Len(t, r.putOff, 1)
	require.Empty(t, r.event())
}

// In any doubt the directory is kept.
func TestDeleteInDoubt(t *testing.T) {
	tests := map[string]struct {
		change func(r *rig)
		want   string // empty: ignored
	}{
		"kept by now":         {func(r *rig) { r.now.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain }, ""},
		"bound by now":        {func(r *rig) { r.now.Status.Phase = corev1.VolumeBound }, ""},
		"another of its name": {func(r *rig) { r.now.UID = "u2" }, ""},
		"disposed of":         {func(r *rig) { r.now.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, ""},
		"gone":                {func(r *rig) { r.failure = apierrors.NewNotFound(schema.GroupResource{}, pvName) }, ""},
		"API server away":     {func(r *rig) { r.failure = errors.New("away") }, "away"},
		"no policy":           {func(r *rig) { r.now.Annotations = nil }, "on-delete"},
		"policy unknown":      {func(r *rig) { r.now.Annotations[AnnotationOnDelete] = "Delete" }, `"Delete"`},
		"path of another":     {func(r *rig) { r.now.Spec.NFS.Path = "/srv/precious" }, "precious"},
		"path leads out":      {func(r *rig) { r.now.Spec.NFS.Path = "/srv/../srv" }, ".."},
		"export itself":       {func(r *rig) { r.now.Spec.NFS.Path = "/srv" }, "spec.nfs.path"},
		"other export":        {func(r *rig) { r.now.Spec.NFS.Server = "c" }, "is in no export"},
		"not mounted":         {func(r *rig) { r.now.Spec.NFS.Server = "a" }, "not known for an export"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			seen, dir := r.provisioned("onDelete", "delete")
			seen = seen.DeepCopy()
			tt.change(r)
			err := r.Delete(t.Context(), seen)
			if tt.want == "" {
				var ignored *controller.IgnoredError
				require.ErrorAs(t, err, &ignored)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
			require.FileExists(t, filepath.Join(dir, "file"))
		})
	}
	r := newRig(t)
	v, dir := r.provisioned("onDelete", "delete")
	v = v.DeepCopy()
	v.UID = "" // as far as the library knows, the API server has not accepted it
	require.NoError(t, r.Delete(t.Context(), v))
	require.FileExists(t, filepath.Join(dir, "file"))
}
