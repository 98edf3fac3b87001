//go:build cluster

package provisioner_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
)

// The limits of the classes in examples/volumeattributesclass.yaml.
const (
	slowLimits = "rbps=20971520 wbps=10485760 riops=max wiops=max"
	fastLimits = "rbps=524288000 wbps=209715200 riops=max wiops=20000"
)

// testAttributesClasses: CSI's resizer, with the shipped rights, changes volumes' limits through the
// provisioner's controller service, and nothing else.
func (b *bed) testAttributesClasses(t *testing.T) {
	b.kubectl(t, "apply", "-f", filepath.Join(b.source, "examples/volumeattributesclass.yaml"), "-f", filepath.Join(b.source, "installer/csi/resizer/rbac.yaml"))
	b.reportRoomy(t)
	b.pool(t, "60Gi", "0", "60Gi")
	s := b.namespace(t, "attributes")
	s.class(s.name, func(c *storagev1.StorageClass) {
		c.VolumeBindingMode, c.AllowVolumeExpansion = ptr(storagev1.VolumeBindingImmediate), ptr(true)
		c.Parameters = map[string]string{"volumeGroup": growGroup, "door": "csi", "readIops": "77"}
	})
	socket := filepath.Join(b.dir, "csi.sock")
	b.flags = []string{"--controller-socket=" + socket}
	t.Cleanup(func() { b.flags = nil })
	p := b.run(t, 8087)
	b.ready(t, 8087)
	// The resizer gives up on a claim whose class it has not yet seen, so it starts after the class was
	// created.
	b.attributes(t, "wrong", pv.Provisioner, map[string]string{"writeBps": "fast", "iops": "1"})
	b.resize(t, socket)

	// A volume starts with the limits of its claim's class, with or without a resizer.
	s.limited("data", ptr("flexlvm-slow"))
	s.limited("plain", nil)
	s.limited("early", ptr("late"))
	s.limitsAre("data", "flexlvm-slow", slowLimits)
	require.Equal(t, "rbps=max wbps=max riops=77 wiops=max", s.volumeOf("plain").Annotations[pv.AnnotationIOLimits])
	s.event(s.name, "PersistentVolumeClaim", "early", "ProvisioningFailed", `the VolumeAttributesClass "late" does not exist; create it`)
	b.attributes(t, "late", pv.Provisioner, map[string]string{"writeIops": "5"})
	s.limitsAre("early", "late", "rbps=max wbps=max riops=max wiops=5")

	// The class changes while the volume exists, back and forth, and from none.
	s.attributesClass("data", "flexlvm-fast")
	s.limitsAre("data", "flexlvm-fast", fastLimits)
	s.event(s.name, "PersistentVolumeClaim", "data", "VolumeModifySuccessful")
	s.attributesClass("plain", "flexlvm-slow")
	s.limitsAre("plain", "flexlvm-slow", slowLimits)
	s.attributesClass("data", "flexlvm-unlimited")
	s.limitsAre("data", "flexlvm-unlimited", "")

	// Wrong parameters are reported on the claim, and change nothing.
	s.attributesClass("plain", "wrong")
	s.event(s.name, "PersistentVolumeClaim", "plain", "VolumeModifyFailed", `writeBps "fast": is not a rate; give bytes per second`, `unknown parameter "iops"`)
	await.Until(t, longest, func() string {
		is := s.pvc("plain").Status.ModifyVolumeStatus
		return await.Missing(is != nil && is.Status == corev1.PersistentVolumeClaimModifyVolumeInfeasible, "the change to a wrong class is %+v", is)
	})
	require.Equal(t, slowLimits, s.volumeOf("plain").Annotations[pv.AnnotationIOLimits])
	s.attributesClass("plain", "flexlvm-fast")
	s.limitsAre("plain", "flexlvm-fast", fastLimits)

	// Growth remains the provisioner's: the resizer grows nothing.
	s.grow("data", "400Ti")
	s.says("data", "Refused", "cannot grow from 64Mi to 400Ti")
	require.Equal(t, "64Mi", ptr(s.volumeOf("data").Spec.Capacity[corev1.ResourceStorage]).String())
	s.grow("data", "2Gi")
	s.granted("data", "2Gi")
	s.kubelet("data", "2Gi")

	// A change waits for a provisioner that is down.
	p.kill()
	s.attributesClass("data", "flexlvm-slow")
	b.run(t, 8088)
	s.limitsAre("data", "flexlvm-slow", slowLimits)
	s.stolenLimits("plain", "data")
}

// resize runs CSI's resizer with the provisioner's account and the shipped flags, and restarts it
// whenever it ends, as kubelet does: it ends when it loses the connection to the controller service.
func (b *bed) resize(t *testing.T, socket string) {
	t.Helper()
	program, err := cluster.BuildSidecar(t.Context(), "resizer", os.Stderr)
	require.NoError(t, err)
	var log bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the signal is sent when the thread that started the process ends
		defer runtime.UnlockOSThread()
		for t.Context().Err() == nil {
			cmd := b.cluster.Command(t.Context(), program, "--kubeconfig="+b.kubeconfig, "--csi-address="+socket, "--extra-modify-metadata",
				"--leader-election", "--leader-election-namespace="+system)
			cmd.Stdout, cmd.Stderr = &log, &log
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			fmt.Fprintf(&log, "ended: %v\n", cmd.Run())
		}
	}()
	t.Cleanup(func() {
		<-done
		if t.Failed() {
			t.Logf("log of csi-resizer:\n%s", log.String())
		}
		require.NotContains(t, log.String(), "forbidden")
		require.Contains(t, log.String(), "Resize not supported", "it must leave growth alone")
	})
}

// limited creates a claim with a VolumeAttributesClass.
func (s *space) limited(name string, class *string) {
	s.t.Helper()
	s.claim(name, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName, c.Spec.VolumeAttributesClassName = &s.name, class
	})
}

// attributesClass sets another VolumeAttributesClass on a claim.
func (s *space) attributesClass(claim, class string) {
	s.t.Helper()
	_, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Patch(s.t.Context(), claim, types.MergePatchType,
		[]byte(fmt.Sprintf(`{"spec":{"volumeAttributesClassName":%q}}`, class)), metav1.PatchOptions{})
	require.NoError(s.t, err)
}

// limitsAre waits until a claim has a VolumeAttributesClass and its PersistentVolume these limits.
func (s *space) limitsAre(claim, class, limits string) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		c, v := s.pvc(claim), s.volumeOf(claim)
		is, of := c.Status.CurrentVolumeAttributesClassName, v.Spec.VolumeAttributesClassName
		return await.Missing(is != nil && *is == class && of != nil && *of == class && c.Status.ModifyVolumeStatus == nil &&
			v.Annotations[pv.AnnotationIOLimits] == limits, "claim %s is not at %s: %+v, volume %v; events %v", claim, class, c.Status, v.Annotations, s.events(s.name, "PersistentVolumeClaim", claim))
	})
}

// attributes creates a VolumeAttributesClass.
func (b *bed) attributes(t *testing.T, name, driver string, parameters map[string]string) {
	t.Helper()
	_, err := b.client.StorageV1().VolumeAttributesClasses().Create(t.Context(), &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driver, Parameters: parameters,
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// stolenLimits: the token with the right to change limits can change only those of bound CSI volumes,
// and can set no class on a claim that does not ask for it.
func (s *space) stolenLimits(claim, grows string) {
	ctx, t := s.t.Context(), s.t
	stolen := s.volumesOf(t, s.as(account))
	const limits, class = `{"metadata":{"annotations":{"flexlvm.io/io-limits":"wbps=1048576"}}}`, `{"spec":{"volumeAttributesClassName":"late"}}`
	require.NoError(t, stolen.patch(ctx, s.volumeOf(claim).Name, limits))
	for name, driver := range map[string]string{"free-flex": pv.Driver, "free-csi": pv.Provisioner} {
		s.persistentVolume(t, name, "sim-1", driver, corev1.VolumeAvailable)
		require.ErrorContains(t, stolen.patch(ctx, name, limits), "of the CSI driver flexlvm.io that is bound to a claim")
	}
	require.ErrorContains(t, stolen.patch(ctx, "free-csi", class), "of the CSI driver flexlvm.io that is bound to a claim")
	status := func(patch string) error { // strategic, because it keeps Kubernetes' own conditions
		_, err := stolen.CoreV1().PersistentVolumeClaims(s.name).Patch(ctx, grows, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
		return err
	}
	const says = "the VolumeAttributesClass that the claim requests"
	require.ErrorContains(t, status(`{"status":{"currentVolumeAttributesClassName":"late"}}`), says)
	require.ErrorContains(t, status(`{"status":{"modifyVolumeStatus":{"targetVolumeAttributesClassName":"late","status":"InProgress"}}}`), says)
	require.NoError(t, status(`{"status":{"modifyVolumeStatus":{"targetVolumeAttributesClassName":"flexlvm-slow","status":"InProgress"},"conditions":[{"type":"ModifyingVolume","status":"True"}]}}`))
}
