//go:build cluster

package gc_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// StorageClasses of the tests.
const (
	lazy      = "flexlvm" // as shipped
	kept      = "kept"
	wiped     = "wiped"
	gone      = "gone"
	lazySmall = "small-lazy"
	goneSmall = "small-gone"
)

func (b *bed) classes(t *testing.T) {
	t.Helper()
	for name, c := range map[string]struct {
		parameters map[string]string
		policy     corev1.PersistentVolumeReclaimPolicy
	}{
		kept:      {map[string]string{"volumeGroup": wide}, corev1.PersistentVolumeReclaimRetain},
		wiped:     {map[string]string{"volumeGroup": wide, "reclaim": "immediate", "wipe": "zero"}, corev1.PersistentVolumeReclaimDelete},
		gone:      {map[string]string{"volumeGroup": wide, "reclaim": "immediate"}, corev1.PersistentVolumeReclaimDelete},
		lazySmall: {map[string]string{"volumeGroup": small}, corev1.PersistentVolumeReclaimDelete},
		goneSmall: {map[string]string{"volumeGroup": small, "reclaim": "immediate"}, corev1.PersistentVolumeReclaimDelete},
	} {
		_, err := b.client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: pv.Provisioner, Parameters: c.parameters, ReclaimPolicy: &c.policy,
			VolumeBindingMode: ptr(storagev1.VolumeBindingWaitForFirstConsumer),
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

// space is a namespace of one test.
type space struct {
	*bed
	t    *testing.T
	name string
}

// space creates a namespace, and at the end removes what the test left, in the API and on the node.
func (b *bed) space(t *testing.T, name string) *space {
	t.Helper()
	b.say(t, "%s begins", t.Name())
	_, err := b.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	s := &space{bed: b, t: t, name: name}
	await.Until(t, longest, func() string {
		if _, err := b.client.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	t.Cleanup(func() {
		if t.Failed() {
			s.dump()
		} else {
			s.tidy()
		}
		b.say(t, "%s ends", t.Name())
	})
	return s
}

// tidy deletes the namespace's pods and claims, and what is left of its volumes.
func (s *space) tidy() {
	ctx := context.WithoutCancel(s.t.Context())
	t := s.t
	pods, claims := s.client.CoreV1().Pods(s.name), s.client.CoreV1().PersistentVolumeClaims(s.name)
	require.NoError(t, pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	require.NoError(t, claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	await.Until(t, longest, func() string {
		left, err := s.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		for _, v := range left.Items {
			if v.Spec.ClaimRef == nil || v.Spec.ClaimRef.Namespace != s.name {
				continue
			}
			if v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
				_ = s.client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{}) // checked in the next iteration
			}
			return fmt.Sprintf("PersistentVolume %s is left", v.Name)
		}
		return ""
	})
	_, err := s.Node(ctx, node, "sh", "-c", lvremove(`--select 'lv_tags={"flexlvm.ns=`+s.name+`"}'`))
	require.NoError(t, err)
}

// dump saves the state of the cluster beside its logs if a test failed.
func (s *space) dump() {
	ctx := context.WithoutCancel(s.t.Context())
	var all strings.Builder
	say := func(what, out string, err error) { fmt.Fprintln(&all, "# "+what, "\n"+out, err) }
	for _, args := range [][]string{
		{"get", "pods,pvc,events", "-A", "-o", "wide"},
		{"get", "pv,csistoragecapacities", "-A", "-o", "wide"},
		{"get", "nodestorage", "-o", "yaml"},
		{"-n", system, "logs", "-l", "app.kubernetes.io/name=" + daemon, "--tail=500", "--prefix"},
		{"-n", system, "logs", "-l", "app.kubernetes.io/name=flexlvm-provisioner", "--tail=200", "--prefix"},
	} {
		out, err := s.Kubectl(ctx, args...)
		say(strings.Join(args, " "), out, err)
	}
	out, err := s.Node(ctx, node, driver, "volumes", "list")
	say("volumes list", out, err)
	path := filepath.Join(filepath.Dir(s.AdminKubeconfig()), "state-"+s.name+".log")
	s.t.Log("how things stood is among the logs, in", filepath.Base(path), os.WriteFile(path, []byte(all.String()), 0o600))
}

// claim creates claims for volumes of the smallest size.
func (s *space) claim(class string, names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.claimOf(class, name, "64Mi")
	}
}

func (s *space) claimOf(class, name, size string) {
	s.t.Helper()
	require.NoError(s.t, s.makeClaim(s.t.Context(), class, name, size))
}

func (s *space) makeClaim(ctx context.Context, class, name, size string) error {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
	_, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Create(ctx, claim, metav1.CreateOptions{})
	return err
}

// promise creates a claim with a PersistentVolume as a person writes them. The provisioner promises
// only space that exists; a person may promise more.
func (s *space) promise(class, group, name string) {
	s.t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}
	_, err := s.client.CoreV1().PersistentVolumes().Create(s.t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: s.name + "-" + name, Labels: map[string]string{pv.LabelNode: node}, Finalizers: []string{pv.Finalizer},
			Annotations: map[string]string{pv.AnnotationProvisionedBy: pv.Provisioner},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: class,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: s.name, Name: name},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
			PersistentVolumeSource: corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{
				Driver: pv.Driver, FSType: "xfs", Options: map[string]string{"volumeGroup": group, "size": "67108864", "clusterUID": s.uid},
			}},
		},
	}, metav1.CreateOptions{})
	require.NoError(s.t, err)
	_, err = s.client.CoreV1().PersistentVolumeClaims(s.name).Create(s.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, VolumeName: s.name + "-" + name, Resources: corev1.VolumeResourceRequirements{Requests: size},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		},
	}, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

// diligent writes a file into each volume that has none, and sleeps only if each file is unchanged. It
// syncs only its own volumes, because others write at the same time.
const diligent = `cd /data && for v in *; do
	[ -e $v/sum ] || { dd if=/dev/urandom of=$v/proof bs=1M count=2 2>/dev/null; md5sum $v/proof >$v/sum.new; sync -f $v; mv $v/sum.new $v/sum; sync -f $v; }
	md5sum -c $v/sum || exit 1
done; touch /tmp/done; ` + cluster.Sleep

// pod creates a pod that uses claims.
func (s *space) pod(name string, claims ...string) {
	s.t.Helper()
	require.NoError(s.t, s.makePod(s.t.Context(), name, claims...))
}

func (s *space) makePod(ctx context.Context, name string, claims ...string) error {
	main := corev1.Container{
		Name: "main", Image: cluster.BusyboxImage, Command: []string{"sh", "-c", diligent},
		Env: []corev1.EnvVar{{Name: "OWNER", Value: s.name + "/" + name}},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: ptr(false), EnableServiceLinks: ptr(false),
			TerminationGracePeriodSeconds: ptr(int64(1)), // 0 would delete the object before its containers
			HostNetwork:                   true,          // a virtual node takes seconds to set up and tear down a network
		},
	}
	for _, claim := range claims {
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: claim, MountPath: "/data/" + claim})
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	pod.Spec.Containers = []corev1.Container{main}
	_, err := s.client.CoreV1().Pods(s.name).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// running waits until pods run.
func (s *space) running(pods ...string) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		for _, name := range pods {
			pod, err := s.client.CoreV1().Pods(s.name).Get(s.t.Context(), name, metav1.GetOptions{})
			require.NoError(s.t, err)
			if pod.Status.Phase != corev1.PodRunning {
				return fmt.Sprintf("pod %s is %s; its events: %v", name, pod.Status.Phase, s.events(s.name, "Pod", name))
			}
		}
		return ""
	})
}

// sums returns the checksums of a pod's files, once the pod has checked them.
func (s *space) sums(pod string) string {
	s.t.Helper()
	return s.sh(pod, "until [ -e /tmp/done ]; do sleep 0.1; done; cat /data/*/sum")
}

// end deletes pods and waits until their volumes are unmounted.
func (s *space) end(pods ...string) {
	s.t.Helper()
	for _, name := range pods {
		require.NoError(s.t, s.client.CoreV1().Pods(s.name).Delete(s.t.Context(), name, metav1.DeleteOptions{}))
	}
	await.Until(s.t, longest, func() string {
		for _, name := range pods {
			_, err := s.client.CoreV1().Pods(s.name).Get(s.t.Context(), name, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				return fmt.Sprintf("pod %s is still there: %v", name, err)
			}
		}
		return ""
	})
}

func (s *space) deleteClaims(names ...string) {
	s.t.Helper()
	for _, name := range names {
		require.NoError(s.t, s.client.CoreV1().PersistentVolumeClaims(s.name).Delete(s.t.Context(), name, metav1.DeleteOptions{}))
	}
}

// volumeOf returns the name of a claim's volume.
func (s *space) volumeOf(claim string) string {
	s.t.Helper()
	c, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Get(s.t.Context(), claim, metav1.GetOptions{})
	require.NoError(s.t, err)
	require.Equal(s.t, corev1.ClaimBound, c.Status.Phase, claim)
	return c.Spec.VolumeName
}

// volumesOf is volumeOf for several claims.
func (s *space) volumesOf(claims ...string) map[string]string {
	s.t.Helper()
	all := map[string]string{}
	for _, claim := range claims {
		all[claim] = s.volumeOf(claim)
	}
	return all
}
