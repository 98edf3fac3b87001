package nodeagent_test

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/discovery"
)

// fakeDisks stands in for the machine.
type fakeDisks struct {
	mu       sync.Mutex
	found    []discovery.Found
	failed   error             // what Find returns
	unseen   map[string]error  // what Find returns, by class
	full     error             // what CheckEmpty returns
	owner    *discovery.Owner  // that CheckEmpty was last called with
	topmost  *discovery.Owner  // what Owner returns
	owned    error             // what CheckOfferable returns
	named    string            // the file system that CheckOfferable returns
	offered  []discovery.Entry // that CheckOfferable was called with
	of       discovery.Class   // that CheckOfferable was last called with
	cleaned  []discovery.Entry
	finding  func()                     // called by Find
	emptying func()                     // called by CheckEmpty
	places   map[string]discovery.Place // what Resolve returns, by path; others lead to themselves
	cleaning func(ctx context.Context, progress func(int64) error) error
}

func (f *fakeDisks) with(g func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g()
}

// blockScans blocks scans until goOn is called or the test ends. Each scan that starts sends to scans.
func (r *rig) blockScans(disks *fakeDisks) (scans chan struct{}, goOn func()) {
	scans = make(chan struct{}, 100)
	let := make(chan struct{})
	disks.with(func() {
		disks.finding = func() {
			scans <- struct{}{}
			<-let
		}
	})
	goOn = sync.OnceFunc(func() {
		disks.with(func() { disks.finding = nil })
		close(let)
	})
	r.t.Cleanup(goOn)
	return scans, goOn
}

func (f *fakeDisks) Find(_ context.Context, classes []discovery.Class) (out []discovery.Found, unseen map[string]error, err error) {
	var finding func()
	f.with(func() { finding = f.finding })
	if finding != nil {
		finding()
	}
	f.with(func() {
		err, unseen = f.failed, f.unseen
		for _, c := range classes {
			for _, one := range f.found {
				if one.Class == c.Name && unseen[c.Name] == nil {
					out = append(out, one)
				}
			}
		}
	})
	return out, unseen, err
}

func (f *fakeDisks) CheckOfferable(_ context.Context, _ discovery.Found, of discovery.Class, e discovery.Entry) (filesystem string, err error) {
	f.with(func() {
		f.offered, f.of = append(f.offered, e), of
		filesystem, err = f.named, f.owned
	})
	return filesystem, err
}

func (f *fakeDisks) CheckEmpty(_ discovery.Found, owner *discovery.Owner) (err error) {
	var emptying func()
	f.with(func() { emptying = f.emptying })
	if emptying != nil {
		emptying()
	}
	f.with(func() { err, f.owner = f.full, owner })
	return err
}

func (f *fakeDisks) Owner(discovery.Found) (is *discovery.Owner, err error) {
	f.with(func() { is = f.topmost })
	return is, nil
}

func (f *fakeDisks) Clean(ctx context.Context, _ discovery.Found, _ discovery.Class, e discovery.Entry, progress func(int64) error) error {
	var cleaning func(context.Context, func(int64) error) error
	f.with(func() {
		f.cleaned = append(f.cleaned, e)
		cleaning = f.cleaning
	})
	if cleaning == nil {
		return nil
	}
	return cleaning(ctx, progress)
}

func (f *fakeDisks) cleanings() (n int) {
	f.with(func() { n = len(f.cleaned) })
	return n
}

func (a *fakeAPI) serveDiscovery(w http.ResponseWriter, name string) {
	switch {
	case name == "":
		list := flexlvmv1.VolumeDiscoveryList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}}
		if a.discovery != nil {
			list.Items = append(list.Items, *a.discovery)
		}
		reply(w, http.StatusOK, list)
	case a.discovery == nil:
		refuse(w, apierrors.NewNotFound(schema.GroupResource{Resource: "volumediscoveries"}, name))
	default:
		reply(w, http.StatusOK, a.discovery)
	}
}

// putDiscovery sends an update of the VolumeDiscovery that changes nothing.
func (a *fakeAPI) putDiscovery() { a.with(func() { a.changed("MODIFIED", a.discovery) }) }

// remove deletes a PersistentVolume, as a person or the provisioner does.
func (a *fakeAPI) remove(name string) {
	a.with(func() {
		v := a.volumes[name]
		delete(a.volumes, name)
		a.changed("DELETED", v)
	})
}

// newDiscoveryRig has a disk at /mnt/fast/a.
func newDiscoveryRig(t *testing.T) (*rig, *fakeDisks) {
	r := newRig(t)
	disks := &fakeDisks{found: []discovery.Found{{Class: "fast", Path: "/mnt/fast/a", Kind: discovery.Device, Disk: "naa.5000", Size: 1 << 30}}}
	r.config.Disks, r.config.DiscoveredFile = disks, filepath.Join(t.TempDir(), "discovered.json")
	r.api.discovery = &flexlvmv1.VolumeDiscovery{
		TypeMeta:   metav1.TypeMeta{APIVersion: "flexlvm.io/v1", Kind: "VolumeDiscovery"},
		ObjectMeta: metav1.ObjectMeta{Name: flexlvmv1.VolumeDiscoveryName, UID: "uid-of-discovery", ResourceVersion: "7"},
		Spec:       flexlvmv1.VolumeDiscoverySpec{Classes: []flexlvmv1.DiscoveryClass{{StorageClassName: "fast", Directory: "/mnt/fast"}}},
	}
	return r, disks
}

// offered saves a ledger in which the disk was offered, as by an earlier process.
func (r *rig) offered() {
	r.t.Helper()
	require.NoError(r.t, discovery.Ledger{"naa.5000": {Path: "/mnt/fast/a", Offer: 1}}.Write(r.config.DiscoveredFile))
}

// static is the PersistentVolume of the disk.
func static(uid string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "static-a", UID: types.UID(uid), Labels: map[string]string{flexlvmv1.LabelDiscoveredOn: "node-1"},
			Annotations: map[string]string{flexlvmv1.AnnotationDisk: "naa.5000"},
		},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "fast", PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:               &corev1.ObjectReference{Namespace: "db", Name: "data", UID: "uid-of-claim"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/fast/a"}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	for _, c := range change {
		c(v)
	}
	return v
}

// discoveredIs waits until the NodeStorage shows the disk in this state.
func (r *rig) discoveredIs(state flexlvmv1.DiscoveredState) (out flexlvmv1.Discovered) {
	r.t.Helper()
	r.eventually(func() bool {
		all := r.status().Discovered
		if len(all) == 1 {
			out = all[0]
		}
		return len(all) == 1 && out.State == state
	}, "it is not %s", state)
	return out
}

// A disk goes from its offer through a claim to the next offer. The daemon writes no PersistentVolume.
func TestDiscovered(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	r.api.discovery.Spec.Classes[0].CleanDevice = flexlvmv1.CleanDiscard
	r.start()
	ready := r.discoveredIs(flexlvmv1.DiscoveredReady)
	require.Equal(t, "naa.5000", ready.Disk)
	require.Equal(t, r.clock.now().Unix(), ready.Offer)
	r.api.put(static("pv-1"))
	require.Equal(t, "pv-1", r.discoveredIs(flexlvmv1.DiscoveredProvided).PersistentVolumeUID)
	r.api.put(static("pv-1", pvReleased))
	cleaned := r.discoveredIs(flexlvmv1.DiscoveredCleaned)
	require.Equal(t, "pv-1 uid-of-claim", cleaned.PersistentVolumeUID+" "+cleaned.ClaimUID)
	require.Equal(t, r.api.discovery.Version(), r.status().DiscoveredFrom)
	require.Equal(t, 1, disks.cleanings())
	r.api.remove("static-a")
	require.Equal(t, ready.Offer+1, r.discoveredIs(flexlvmv1.DiscoveredReady).Offer)
	require.Equal(t, 1, disks.cleanings())
	disks.with(func() {
		require.Equal(t, discovery.Class{Name: "fast", Directory: "/mnt/fast", Files: true, Device: discovery.Discard}, disks.of)
		require.Empty(t, disks.offered[0].Cleaned)
		last := disks.offered[len(disks.offered)-1]
		require.Equal(t, []string{"pv-1"}, last.Cleaned, "that it was discarded is what lets it be offered")
		require.Equal(t, discovery.Discard, last.Erasure)
	})
	r.api.with(func() {
		require.Zero(t, r.api.asked["patch persistentvolumes"]+r.api.asked["delete persistentvolumes"]+r.api.asked["post persistentvolumes"])
	})
}

// A disk is not cleaned while its claim exists, whatever the phase of its PersistentVolume, or while the API server
// does not confirm the verdict. The watches may be outdated.
func TestDiscoveredIsNotCleaned(t *testing.T) {
	t.Parallel()
	// before changes the API server's objects before the daemon starts; asked changes them during the daemon's GET,
	// or answers it.
	tests := map[string]struct {
		before func(*fakeAPI)
		asked  func(*fakeAPI, http.ResponseWriter) bool
		says   string
	}{
		"its claim is there": {before: func(a *fakeAPI) {
			a.claims["data"] = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "data", UID: "uid-of-claim"}}
		}, says: "its claim db/data is still there"},
		"Retain was said":          {asked: quietly(func(a *fakeAPI) { pvRetain(a.volumes["static-a"]) }), says: "its PersistentVolume has changed meanwhile"},
		"another path":             {asked: quietly(func(a *fakeAPI) { a.volumes["static-a"].Spec.Local.Path = "/mnt/fast/b" }), says: "its PersistentVolume has changed meanwhile"},
		"another class":            {asked: quietly(func(a *fakeAPI) { a.discovery.Spec.Classes[0].CleanDevice = flexlvmv1.CleanKeep }), says: "its class has changed meanwhile"},
		"the VolumeDiscovery goes": {asked: quietly(func(a *fakeAPI) { a.discovery.DeletionTimestamp = &metav1.Time{Time: time.Now()} }), says: "its class has changed meanwhile"},
		"the class leaves the node": {asked: quietly(func(a *fakeAPI) {
			a.discovery.Spec.Classes[0].NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"disks": "local"}}
			a.discovery.Generation++
		}), says: "its class has changed meanwhile"},
		"no answer": {asked: func(_ *fakeAPI, w http.ResponseWriter) bool {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}, says: "it is not cleaned, and it is retried: get PersistentVolume static-a"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			r.offered()
			r.api.discovery.Spec.Classes[0].CleanDevice = flexlvmv1.CleanDiscard
			r.api.put(static("pv-1", pvReleased))
			r.api.with(func() {
				if tt.before != nil {
					tt.before(r.api)
				}
				r.api.fault = func(w http.ResponseWriter, verb, resource string) bool {
					return tt.asked != nil && verb == "get" && resource == "persistentvolumes" && tt.asked(r.api, w)
				}
			})
			r.start()
			r.eventually(func() bool {
				all := r.status().Discovered
				return len(all) == 1 && all[0].State == flexlvmv1.DiscoveredCleaning && strings.Contains(all[0].Message, tt.says)
			}, "it does not say why")
			require.Zero(t, disks.cleanings())
		})
	}
}

// quietly changes an object of the API server without an event for the watches.
func quietly(change func(*fakeAPI)) func(*fakeAPI, http.ResponseWriter) bool {
	return func(a *fakeAPI, _ http.ResponseWriter) bool {
		a.with(func() { change(a) })
		return false
	}
}

// A killed cleaning resumes at its last offset in the next process.
func TestDiscoveredIsCleanedFromWhereItHadCome(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	r.offered()
	begun := make(chan struct{})
	disks.cleaning = func(ctx context.Context, progress func(int64) error) error {
		if err := progress(512); err != nil {
			return err
		}
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	}
	r.api.put(static("pv-1", pvReleased))
	stop := r.start()
	select {
	case <-begun:
	case <-time.After(soon):
		t.Fatal("it does not begin")
	}
	stop()
	disks.with(func() { disks.cleaning = nil })
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredCleaned)
	disks.with(func() {
		require.Len(t, disks.cleaned, 2)
		require.EqualValues(t, 0, disks.cleaned[0].Offset)
		require.EqualValues(t, 512, disks.cleaned[1].Offset)
	})
}

// A disk that was handed out and whose PersistentVolume was deleted by hand is not offered again before the disk is
// empty. A disk that is in use is not offered either.
func TestDiscoveredThatIsNotEmpty(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	require.NoError(t, discovery.Ledger{"naa.5000": {Path: "/mnt/fast/a", Offer: 1, Volume: "pv-0", Cleaned: []string{"pv-0"}, Erasure: discovery.Discard, Owner: &discovery.Owner{UID: 7}}}.Write(r.config.DiscoveredFile))
	r.api.put(static("pv-1"))
	r.start()
	r.discoveredIs(flexlvmv1.DiscoveredProvided)
	disks.with(func() { disks.full = errors.New("it holds a database") })
	r.api.remove("static-a")
	require.Contains(t, r.discoveredIs(flexlvmv1.DiscoveredRefused).Message, "it holds a database")
	disks.with(func() { disks.full, disks.owned = nil, errors.New("it is part of dm-3") })
	r.eventually(func() bool {
		r.api.putDiscovery()
		return len(r.status().Discovered) == 1 && r.status().Discovered[0].Message == "it is part of dm-3"
	}, "it is not looked at again")
	disks.with(func() { disks.owned = nil })
	r.api.putDiscovery()
	r.discoveredIs(flexlvmv1.DiscoveredReady)
	disks.with(func() {
		last := disks.offered[len(disks.offered)-1]
		require.Equal(t, []string{"pv-0", "pv-1"}, last.Cleaned)
		require.Equal(t, &discovery.Owner{UID: 7}, disks.owner)
		require.Equal(t, discovery.KeepDevice, last.Erasure, "it was discarded before pv-1, which may have written to all of it")
	})
}

// A disk whose class no longer matches its name is not missing, so nobody is advised to delete its claim.
func TestDiscoveredOutsideTheNamePattern(t *testing.T) {
	t.Parallel()
	for state, change := range map[flexlvmv1.DiscoveredState]func(*corev1.PersistentVolume){
		flexlvmv1.DiscoveredProvided: func(*corev1.PersistentVolume) {},
		flexlvmv1.DiscoveredKept:     pvReleased,
	} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			r, disks := newDiscoveryRig(t)
			r.offered()
			disks.found, r.api.discovery.Spec.Classes[0].NamePattern = nil, "nvme*,b"
			r.api.put(static("pv-1", change))
			r.start()
			require.Equal(t, "no class of the VolumeDiscovery has this path on this node any longer, so nothing is cleaned", r.discoveredIs(state).Message)
			require.Zero(t, disks.cleanings())
		})
	}
}

// If a disk is gone, or another one is in its place, the state is reported and the disk is not cleaned.
func TestDiscoveredThatIsMissing(t *testing.T) {
	t.Parallel()
	r, disks := newDiscoveryRig(t)
	r.api.put(static("pv-1", pvReleased))
	disks.found[0].Disk = "naa.other"
	r.start()
	require.Contains(t, r.discoveredIs(flexlvmv1.DiscoveredRefused).Message, "another disk is at /mnt/fast/a")
	disks.with(func() { disks.found = nil })
	r.api.putDiscovery()
	require.Contains(t, r.discoveredIs(flexlvmv1.DiscoveredMissing).Message, "there is nothing at /mnt/fast/a")
	r.eventually(func() bool { return len(r.api.told("DiskMissing")) > 0 }, "nobody is told")
	r.metricIs("flexlvm_discovered_disks", 1)
	require.Zero(t, disks.cleanings())
}
