package provision_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// localVolumesAPI holds many LocalVolumes and counts the requests.
type localVolumesAPI struct {
	objects  map[string]*flexlvmv1.LocalVolume
	requests int
}

func (a *localVolumesAPI) LocalVolume(_ context.Context, _, name string) (*flexlvmv1.LocalVolume, error) {
	a.requests++
	return a.objects[name].DeepCopy(), nil
}

func (a *localVolumesAPI) SetLocalVolumeFinalizers(_ context.Context, o *flexlvmv1.LocalVolume, finalizers []string) (*flexlvmv1.LocalVolume, error) {
	a.requests++
	a.objects[o.Name].Finalizers = finalizers
	return a.objects[o.Name].DeepCopy(), nil
}

func (a *localVolumesAPI) UpdateLocalVolumeStatus(_ context.Context, o *flexlvmv1.LocalVolume) error {
	a.requests++
	a.objects[o.Name].Status = *o.Status.DeepCopy()
	return nil
}

// A crowd is many LocalVolumes that one process handles.
type crowd struct {
	t      *testing.T
	api    *localVolumesAPI
	client *fake.Clientset
	cast   *cast
	loop   *provision.LocalVolumes
	now    time.Time
}

func newCrowd(t *testing.T) *crowd {
	c := &crowd{t: t, api: &localVolumesAPI{objects: map[string]*flexlvmv1.LocalVolume{}}, client: fake.NewClientset(), cast: newCast(t), now: time.Unix(1000, 0)}
	c.loop = provision.NewLocalVolumes(c.cast.provisioner(t), c.client, c.api, cache.NewStore(cache.MetaNamespaceKeyFunc))
	c.loop.At(func() time.Time { return c.now })
	return c
}

func (c *crowd) add(name, size string, change ...func(*flexlvmv1.LocalVolume)) {
	o := &flexlvmv1.LocalVolume{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)},
		Spec: flexlvmv1.LocalVolumeSpec{
			NodeName: "node-1", StorageClassName: "flexlvm", VolumeMode: corev1.PersistentVolumeFilesystem,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		},
	}
	o.Spec.Size = flexlvmv1.DiskSize(size)
	for _, f := range change {
		f(o)
	}
	c.api.objects[name] = o
}

// pass makes a pass over all LocalVolumes, a second after the last one, and returns the number of requests.
func (c *crowd) pass() int {
	c.now = c.now.Add(time.Second)
	c.api.requests = 0
	c.client.ClearActions()
	for _, o := range c.api.objects {
		c.loop.Sync(c.t.Context(), o.DeepCopy())
	}
	return c.api.requests + len(c.client.Actions())
}

func (c *crowd) reason(name string) string {
	ready := meta.FindStatusCondition(c.api.objects[name].Status.Conditions, flexlvmv1.ConditionReady)
	require.NotNil(c.t, ready, name)
	return ready.Reason
}

// LocalVolumes that cannot be served cause no requests while nothing changes for them, however often the loop runs.
func TestLocalVolumesThatCannotBeServedAskForNothing(t *testing.T) {
	c := newCrowd(t)
	for i := range 250 {
		c.add(fmt.Sprint("gone-", i), "1Gi", func(o *flexlvmv1.LocalVolume) { o.Status.PersistentVolumeName = "local-" + string(o.UID) })
		c.add(fmt.Sprint("large-", i), "1Ti")
	}
	c.add("node-gone", "1Gi", func(o *flexlvmv1.LocalVolume) { o.Spec.NodeName = "node-9" })
	c.pass()
	require.Equal(t, flexlvmv1.LocalVolumeGone, c.reason("gone-7"))
	require.Equal(t, flexlvmv1.LocalVolumeNoRoom, c.reason("large-7"))
	require.Equal(t, flexlvmv1.LocalVolumeRefused, c.reason("node-gone"))
	requests := 0
	for range 60 {
		requests += c.pass()
	}
	require.Zero(t, requests)

	c.add("new", "1Gi")
	c.pass()
	require.Equal(t, flexlvmv1.LocalVolumeMaking, c.reason("new"))
	c.cast.ledger.Report(ledgertest.Report("node-1", 2*volume.TiB))
	c.pass()
	served := 0
	for i := range 250 {
		if c.reason(fmt.Sprint("large-", i)) == flexlvmv1.LocalVolumeMaking {
			served++
		}
	}
	require.Equal(t, 1, served, "as soon as there is room")
}

// A request that the API server rejects is retried after a backoff, or when the class changes.
func TestLocalVolumesThatAreDeniedBackOff(t *testing.T) {
	c := newCrowd(t)
	denied := true
	c.client.PrependReactor("create", "persistentvolumes", func(kubetesting.Action) (bool, runtime.Object, error) {
		return denied, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumes"}, "local", errors.New("a policy"))
	})
	c.add("data", "1Gi")
	c.pass()
	require.Equal(t, flexlvmv1.LocalVolumeRefused, c.reason("data"))
	requests := 0
	for range 60 {
		requests += c.pass()
	}
	require.Less(t, requests, 15)
	denied = false
	c.now = c.now.Add(5 * time.Minute)
	c.pass()
	require.Equal(t, flexlvmv1.LocalVolumeMaking, c.reason("data"))

	denied = true
	c.add("other", "1Gi")
	c.pass()
	denied = false
	require.Equal(t, 1, c.pass(), "for data alone, which no cache shows")
	require.Equal(t, flexlvmv1.LocalVolumeRefused, c.reason("other"))
	c.cast.classes[0].ResourceVersion = "2"
	c.pass()
	require.Equal(t, flexlvmv1.LocalVolumeMaking, c.reason("other"))
}

// A mistake in a LocalVolume is not attributed to its class, or to a field that only claims have.
func TestLocalVolumeSaysWhatToMakeAgain(t *testing.T) {
	tooLarge := func(o *flexlvmv1.LocalVolume) { o.Spec.Size = "600Ti" }
	own := func(key, value string) func(*flexlvmv1.LocalVolume) {
		return func(o *flexlvmv1.LocalVolume) { o.Spec.Parameters = map[string]string{key: value} }
	}
	block := func(o *flexlvmv1.LocalVolume) {
		own("fsType", "ext4")(o)
		o.Spec.VolumeMode = corev1.PersistentVolumeBlock
	}
	for name, tt := range map[string]struct {
		class  map[string]string
		change func(*flexlvmv1.LocalVolume)
		says   string
	}{
		"a parameter":                {change: own("stripes", "2"), says: `spec.parameters: stripes: belongs to layout "striped", and the layout is "linear"; leave it out; make another LocalVolume`},
		"a file system":              {change: own("fsType", "btrfs"), says: `spec.parameters: fsType "btrfs": is not a file system that flexlvm makes; it is xfs or ext4; make another LocalVolume`},
		"a layout":                   {change: own("layout", "directory"), says: `spec.parameters: volumes of layout "directory" are made by their first mount; let a claim ask for one`},
		"a size":                     {change: tooLarge, says: `spec.size "600Ti": is more than 500 TiB, the most that is supported`},
		"a device":                   {class: map[string]string{"door": "csi"}, change: block, says: `spec.parameters: fsType "ext4" does not belong to volumeMode Block, which has no file system; make another LocalVolume without it`},
		"a class that is wrong, too": {class: map[string]string{"wipe": "twice"}, change: own("stripes", "2"), says: `StorageClass "flexlvm": wipe "twice": is not known; it is one of none, discard, zero; a class cannot be changed, create it again`},
	} {
		t.Run(name, func(t *testing.T) {
			b := newLocalBed(t, tt.change)
			b.cast.classes = []*storagev1.StorageClass{class(func(c *storagev1.StorageClass) { c.Parameters = tt.class })}
			reason, message := b.sync()
			require.Equal(t, flexlvmv1.LocalVolumeRefused, reason)
			require.Equal(t, tt.says, message)
		})
	}
}
