package dataset

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// rig is a reconciler on a fake API server. It also plays the parts of Kubernetes that the reconciler waits
// for.
type rig struct {
	*testing.T
	*reconciler
	client  client.WithWatch
	nodes   cache.Indexer
	classes cache.Indexer
	fail    func(verb string, object any) error // returns the API server's error for a request; nil: no request fails
	done    []string                            // creations and deletions, in order
	volume  int
	failed  string                  // message of the loaders, which then fail; empty: they succeed
	created map[string]int          // number of objects created, by type and name
	forgets func(*batchv1.Job) bool // reports which Jobs get no pod; nil: none
}

func newRig(t *testing.T) *rig {
	t.Helper()
	known := runtime.NewScheme()
	require.NoError(t, scheme.AddToScheme(known))
	require.NoError(t, flexlvmv1.AddToScheme(known))
	r := &rig{T: t, created: map[string]int{}, nodes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), classes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}
	try := func(verb string, object client.Object) error {
		if r.fail != nil {
			if err := r.fail(verb, object); err != nil {
				return err
			}
		}
		if verb == "create" || verb == "delete" {
			r.done = append(r.done, fmt.Sprintf("%s %s", verb, object.GetName()))
		}
		return nil
	}
	r.client = fake.NewClientBuilder().WithScheme(known).WithStatusSubresource(&flexlvmv1.VolumeManager{}).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, o ...client.GetOption) error {
			return errors.Join(try("get", object), c.Get(ctx, key, object, o...))
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			if r.fail != nil {
				if err := r.fail("list", list); err != nil {
					return err
				}
			}
			return c.List(ctx, list, o...)
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.CreateOption) error {
			if err := try("create", object); err != nil {
				return err
			}
			object.SetUID(r.newUID(object))
			return c.Create(ctx, object, o...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, o ...client.DeleteOption) error {
			if err := try("delete", object); err != nil {
				return err
			}
			return c.Delete(ctx, object, o...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, o ...client.PatchOption) error {
			if err := try("patch", object); err != nil {
				return err
			}
			return c.Patch(ctx, object, patch, o...)
		},
	}).Build()
	require.NoError(t, r.classes.Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: DefaultClass}, Provisioner: pv.Provisioner}))
	r.reconciler = &reconciler{
		Config: Config{
			Image: "loader", Cluster: "cluster", Events: &record.FakeRecorder{},
			Nodes: corelisters.NewNodeLister(r.nodes), Classes: storagelisters.NewStorageClassLister(r.classes),
			Progress: func(context.Context, string, string) *protocol.Status { return nil },
			Pods:     r.pods,
		},
		cached: r.client, live: r.client, write: r.client, now: time.Now,
		lists: podLists{gap: maxListGap}, podless: podLists{gap: maxPodlessGap},
	}
	for _, name := range []string{"node-0", "node-1"} {
		require.NoError(t, r.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	r.done = nil
	return r
}

// pods calls each for every pod of a namespace, read from r.live.
func (r *rig) pods(ctx context.Context, namespace string, each func(*corev1.Pod)) error {
	list := &corev1.PodList{}
	if err := r.live.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		each(&list.Items[i])
	}
	return nil
}

// manager creates VolumeManager ns/v with one dataset.
func (r *rig) manager(replicas flexlvmv1.ReplicaCount) *flexlvmv1.VolumeManager {
	r.Helper()
	v := volumeOf(flexlvmv1.SourceS3, replicas, s3Options(nil))
	vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v"}, Spec: flexlvmv1.VolumeManagerSpec{Volumes: []flexlvmv1.VolumeConfig{v}}}
	require.NoError(r, r.client.Create(r.Context(), vm))
	return vm
}

// look reconciles VolumeManager ns/v once, after Kubernetes has done its part.
func (r *rig) look() error {
	r.Helper()
	r.kubernetes()
	_, err := r.Reconcile(r.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "v"}})
	return err
}

func (r *rig) get() *flexlvmv1.VolumeManager {
	r.Helper()
	vm := &flexlvmv1.VolumeManager{}
	require.NoError(r, r.client.Get(r.Context(), client.ObjectKey{Namespace: "ns", Name: "v"}, vm))
	return vm
}

// kubernetes binds the claims of replicas, ends all Jobs, and updates the node lister.
func (r *rig) kubernetes() {
	r.Helper()
	fail := r.fail
	r.fail = nil
	defer func() { r.fail = fail }()
	ctx := r.Context()
	nodes, claims, jobs := &corev1.NodeList{}, &corev1.PersistentVolumeClaimList{}, &batchv1.JobList{}
	for _, list := range []client.ObjectList{nodes, claims, jobs} {
		require.NoError(r, r.client.List(ctx, list))
	}
	for i := range nodes.Items {
		require.NoError(r, r.nodes.Add(&nodes.Items[i]))
	}
	for i := range claims.Items {
		c := &claims.Items[i]
		index := c.Labels[labelReplica]
		if index == "" || c.Spec.VolumeName != "" {
			continue
		}
		r.volume++
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
			Name:   fmt.Sprintf("pvc-%d", r.volume),
			Labels: map[string]string{pv.LabelNode: "node-" + index, replica.LabelDataset: c.Labels[replica.LabelDataset]},
		}}
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: c.Name, UID: c.UID}
		require.NoError(r, r.client.Create(ctx, v))
		c.Spec.VolumeName, c.Status.Phase, c.Status.Capacity = v.Name, corev1.ClaimBound, c.Spec.Resources.Requests
		require.NoError(r, r.client.Update(ctx, c))
		require.NoError(r, r.client.Status().Update(ctx, c))
	}
	for i := range jobs.Items {
		j := &jobs.Items[i]
		if r.forgets != nil && r.forgets(j) {
			j.Status.StartTime = &metav1.Time{Time: r.now()}
			require.NoError(r, r.client.Status().Update(ctx, j))
			continue
		}
		how := batchv1.JobComplete
		if r.failed != "" {
			how = batchv1.JobFailed
		}
		r.endedPod(j)
		j.Status.Conditions = []batchv1.JobCondition{{Type: how, Reason: "Because", Message: r.failed, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(r.now())}}
		require.NoError(r, r.client.Status().Update(ctx, j))
	}
}

// endedPod creates the pod of a Job whose loader has ended.
func (r *rig) endedPod(job *batchv1.Job) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: job.Namespace, Name: job.Name + "-pod", Labels: job.Spec.Template.Labels, Annotations: job.Spec.Template.Annotations,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
	}}
	pod.Status.Phase = corev1.PodSucceeded
	if r.failed != "" {
		pod.Status.Phase = corev1.PodFailed
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: loader, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: r.failed}}}}
	done := r.done // the following are not actions of the controller
	require.NoError(r, client.IgnoreNotFound(r.client.Delete(r.Context(), pod.DeepCopy())))
	require.NoError(r, r.client.Create(r.Context(), pod))
	r.done = done
}

func (r *rig) runs() {
	r.Helper()
	for tries := 0; r.get().Status.State != flexlvmv1.StateRunning; tries++ {
		require.Less(r, tries, 12, "%+v", r.get().Status)
		require.NoError(r, r.look())
	}
	require.NoError(r, r.look()) // one more pass, after which nothing is left to do
	r.done = nil
}

func (r *rig) deleted() (names []string) {
	for _, d := range r.done {
		if name, is := strings.CutPrefix(d, "delete "); is {
			names = append(names, name)
		}
	}
	return names
}

func TestReconcile(t *testing.T) {
	r := newRig(t)
	r.manager(2)
	r.runs()
	labels := 0
	for _, o := range r.nodes.List() {
		labels += len(o.(*corev1.Node).Labels)
	}
	require.Equal(t, 2, labels)
	// A pass without a change takes no action and does not write the status.
	version := r.get().ResourceVersion
	require.NoError(t, r.look())
	require.Empty(t, r.done)
	require.Equal(t, version, r.get().ResourceVersion)
	// After the deletion of the VolumeManager, none of its objects and no node label is left.
	require.NoError(t, r.client.Delete(t.Context(), r.get()))
	for range 12 {
		require.NoError(t, r.look())
	}
	for _, list := range []client.ObjectList{&corev1.PersistentVolumeClaimList{}, &batchv1.JobList{}, &flexlvmv1.VolumeManagerList{}} {
		require.NoError(t, r.client.List(t.Context(), list))
		require.Empty(t, asItems(t, list), "%T", list)
	}
	nodes := &corev1.NodeList{}
	require.NoError(t, r.client.List(t.Context(), nodes))
	for _, n := range nodes.Items {
		require.Empty(t, n.Labels)
	}
}

func asItems(t *testing.T, list client.ObjectList) []any {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(list)
	require.NoError(t, err)
	items, _ := content["items"].([]any)
	return items
}

// A failed load is deleted and not retried until AnnotationRetry changes.
func TestReconcileFailure(t *testing.T) {
	r := newRig(t)
	r.failed = "it is broken"
	r.manager(1)
	for range 8 {
		require.NoError(t, r.look())
	}
	status := r.get().Status
	require.Equal(t, flexlvmv1.StateFailed, status.State)
	require.Contains(t, status.Volumes[0].Message, "it is broken")
	require.Equal(t, []string{"delete v-a-0", "delete v-a-0"}, r.done[len(r.done)-2:])
	tries := len(r.done)
	for range 5 {
		require.NoError(t, r.look())
	}
	require.Len(t, r.done, tries)
	r.failed = ""
	vm := r.get()
	vm.Annotations = map[string]string{AnnotationRetry: "1"}
	require.NoError(t, r.client.Update(t.Context(), vm))
	r.runs()
}

// On Completed, the content is uploaded once, before anything is deleted.
func TestReconcileUpload(t *testing.T) {
	r := newRig(t)
	v := volumeOf(flexlvmv1.SourceS3Dev, 1, s3Options(options{"outputURL": "s3://out/"}))
	vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v"}, Spec: flexlvmv1.VolumeManagerSpec{Volumes: []flexlvmv1.VolumeConfig{v}}}
	require.NoError(t, r.client.Create(t.Context(), vm))
	r.runs()
	writer := podOf("v-a-0")
	require.NoError(t, r.client.Create(t.Context(), writer))
	vm = r.get()
	vm.Spec.State = flexlvmv1.StateCompleted
	require.NoError(t, r.client.Update(t.Context(), vm))
	r.done = nil
	for range 5 {
		require.NoError(t, r.look())
	}
	require.Empty(t, r.done, "it is in use")
	require.Contains(t, r.get().Status.Volumes[0].Message, "pods that use it: writer")
	require.NoError(t, r.client.Delete(t.Context(), writer))
	r.done = nil
	for range 10 {
		require.NoError(t, r.look())
	}
	require.Equal(t, []string{"create v-a-put", "delete v-a-0", "delete v-a-0", "delete v-a-put"}, r.done)
	require.Equal(t, flexlvmv1.StateCompleted, r.get().Status.State)
	again, err := r.step(t.Context(), r.get())
	require.NoError(t, err)
	require.Zero(t, again, "what is finished is not looked at for ever")
}

// One patch sets Completed and invalid options: the target of the upload is unknown, so nothing is deleted.
func TestReconcileUploadThatCannotBeRead(t *testing.T) {
	for name, wrong := range map[string]options{
		"another scheme":       {"outputURL": "https://out/"},
		"capitals":             {"outputURL": "S3://out/"},
		"a policy that is not": {"outputURL": "s3://out/", "evictionPolicy": "LRU"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			v := volumeOf(flexlvmv1.SourceS3Dev, 1, s3Options(nil))
			vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v"}, Spec: flexlvmv1.VolumeManagerSpec{Volumes: []flexlvmv1.VolumeConfig{v}}}
			require.NoError(t, r.client.Create(t.Context(), vm))
			r.runs()
			vm = r.get()
			vm.Spec.State, vm.Spec.Volumes[0].Options = flexlvmv1.StateCompleted, s3Options(wrong)
			require.NoError(t, r.client.Update(t.Context(), vm))
			for range 5 {
				require.NoError(t, r.look())
			}
			require.Empty(t, r.done)
			require.Equal(t, flexlvmv1.StateFailed, r.get().Status.State)
			// Deleting the VolumeManager does not ask for an upload.
			require.NoError(t, r.client.Delete(t.Context(), r.get()))
			for range 8 {
				require.NoError(t, r.look())
			}
			require.Contains(t, r.deleted(), "v-a-0")
		})
	}
}

// If the API server denies the claim of one replica, for example for a quota, the other replicas serve
// nevertheless.
func TestRefusedObjectKeepsNothingElse(t *testing.T) {
	for name, refusal := range map[string]error{
		"a quota":                apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, "v-a-0", errors.New("exceeded quota")),
		"a webhook without code": &apierrors.StatusError{ErrStatus: metav1.Status{Code: 400, Message: "exceeded quota"}},
		"a webhook that is away": apierrors.NewInternalError(errors.New("failed calling webhook, which says exceeded quota")),
	} {
		t.Run(name, func(t *testing.T) { testRefusedObject(t, refusal) })
	}
}

func testRefusedObject(t *testing.T, refusal error) {
	r := newRig(t)
	r.fail = func(verb string, o any) error {
		if c, is := o.(*corev1.PersistentVolumeClaim); is && verb == "create" && c.Name == "v-a-0" {
			return refusal
		}
		return nil
	}
	r.manager(2)
	for range 8 {
		require.NoError(t, r.look())
	}
	vm := r.get()
	require.EqualValues(t, 1, vm.Status.Volumes[0].ReadyReplicas)
	require.Contains(t, vm.Status.Volumes[0].Message, "exceeded quota")
	node := &corev1.Node{}
	require.NoError(t, r.client.Get(t.Context(), client.ObjectKey{Name: "node-1"}, node))
	require.Len(t, node.Labels, 1)
	again, err := r.step(t.Context(), vm)
	require.NoError(t, err)
	require.GreaterOrEqual(t, again, whileRefused, "it will be refused again")
}
