// Package start measures, on a virtual cluster, how long a user waits from creating a claim and its pod until the
// pod is Running.
package start

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/flexlvm/flexlvm/test/bench/figure"
	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

// Node is the only node.
const Node = "node1"

const (
	namespace = "default"
	// Driver is the path of the driver on a node.
	Driver   = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/flexlvm.io~flexlvm/flexlvm"
	rounds   = 12
	patience = 4 * time.Minute
)

// Measure compares a pod with a new claim of the shipped class with the same pod with an emptyDir.
func Measure(ctx context.Context) (f figure.Figure, err error) {
	b, err := Open(ctx, 16<<30)
	if err != nil {
		return figure.Figure{}, err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	n := 0
	side := func(size string) figure.Side {
		name := ""
		return figure.Side{
			Before: func() error {
				n++
				name = fmt.Sprintf("pod-%d", n)
				return nil
			},
			Run:   func() error { return b.Run(ctx, size, name) },
			After: func() error { return b.End(ctx, name) },
		}
	}
	return figure.Compare("claim and pod applied → Running ÷ the same pod with emptyDir", rounds, 1.5, side("64Mi"), side(""))
}

// A Bed is a cluster of one node with flexlvm and a volume group on a disk of its own.
type Bed struct {
	*cluster.Cluster
	Client kubernetes.Interface
}

// Open starts a Bed. The caller must close it.
func Open(ctx context.Context, disk int64) (b *Bed, err error) {
	c, err := cluster.StartShipped(ctx, cluster.Config{
		Name: fmt.Sprintf("bench-start-%d", os.Getpid()), Nodes: 1, DiskSize: disk, Log: os.Stderr,
	})
	if err != nil {
		return nil, err
	}
	b = &Bed{Cluster: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close(ctx))
		}
	}()
	config, err := clientcmd.BuildConfigFromFlags("", c.AdminKubeconfig())
	if err != nil {
		return nil, err
	}
	config.Dial, config.QPS, config.Burst = c.Dial, 500, 1000
	if b.Client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	return b, install(ctx, c)
}

// Close stops the cluster, even if ctx has ended.
func (b *Bed) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return b.Stop(ctx)
}

// install installs flexlvm as a user does, and waits until the scheduler sees the capacity.
func install(ctx context.Context, c *cluster.Cluster) error {
	source, err := vm.SourceDir()
	if err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "apply", "-k", filepath.Join(source, "installer")); err != nil {
		return err
	}
	for _, what := range []string{"daemonset/flexlvm-installer", "deployment/flexlvm-provisioner", "daemonset/flexlvm-gc"} {
		if _, err := c.Kubectl(ctx, "-n", "flexlvm-system", "rollout", "status", what, "--timeout=240s"); err != nil {
			return err
		}
	}
	if out, err := c.Node(ctx, Node, Driver, "vg", "create", "/dev/vdb"); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return offered(ctx, c, "flexlvm")
}

// Offered waits until the capacity for a class is published to the scheduler.
func (b *Bed) Offered(ctx context.Context, class string) error { return offered(ctx, b.Cluster, class) }

func offered(ctx context.Context, c *cluster.Cluster, class string) error {
	return await(ctx, func() (bool, error) {
		out, err := c.Kubectl(ctx, "get", "csistoragecapacities", "-n", "flexlvm-system", "-o", "jsonpath={.items[*].storageClassName}")
		return slices.Contains(strings.Fields(out), class), err
	})
}

// A Claim is a claim and the pod of the same name that uses it.
type Claim struct {
	Name  string
	Class string
	Size  string // empty: no claim, and the pod has an emptyDir
}

// Run creates pods at the same time, each with a claim of this size, or with an emptyDir if size is empty, and
// waits until all of them run.
func (b *Bed) Run(ctx context.Context, size string, names ...string) error {
	var claims []Claim
	for _, name := range names {
		claims = append(claims, Claim{Name: name, Class: "flexlvm", Size: size})
	}
	return b.RunClaims(ctx, claims...)
}

// RunClaims creates claims and their pods at the same time, and waits until all pods run.
func (b *Bed) RunClaims(ctx context.Context, claims ...Claim) error {
	var names []string
	for _, c := range claims {
		names = append(names, c.Name)
		if err := b.claim(ctx, c); err != nil {
			return err
		}
		if err := b.pod(ctx, c); err != nil {
			return err
		}
	}
	return b.running(ctx, names...)
}

// RunPod creates a pod for an existing claim, and waits until it runs.
func (b *Bed) RunPod(ctx context.Context, c Claim) error {
	if err := b.pod(ctx, c); err != nil {
		return err
	}
	return b.running(ctx, c.Name)
}

func (b *Bed) running(ctx context.Context, names ...string) error {
	return await(ctx, func() (bool, error) {
		for _, name := range names {
			pod, err := b.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil || pod.Status.Phase != corev1.PodRunning {
				return false, err
			}
		}
		return true, nil
	})
}

func (b *Bed) claim(ctx context.Context, c Claim) error {
	if c.Size == "" {
		return nil
	}
	_, err := b.Client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &c.Class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(c.Size)}},
		},
	}, metav1.CreateOptions{})
	return err
}

func (b *Bed) pod(ctx context.Context, c Claim) error {
	source := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	if c.Size != "" {
		source = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name}}
	}
	grace := int64(0)
	_, err := b.Client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{
				Name: "main", Image: cluster.BusyboxImage, Command: []string{"sleep", "86400"},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: source}},
		},
	}, metav1.CreateOptions{})
	return err
}

// EndPod deletes a pod, and waits until it is gone.
func (b *Bed) EndPod(ctx context.Context, name string) error {
	if err := b.Client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return await(ctx, func() (bool, error) {
		_, err := b.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

// Grow requests more capacity for a claim, and waits until the claim has it.
func (b *Bed) Grow(ctx context.Context, name, size string) error {
	claims := b.Client.CoreV1().PersistentVolumeClaims(namespace)
	patch := fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)
	if _, err := claims.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	want := resource.MustParse(size)
	return await(ctx, func() (bool, error) {
		claim, err := claims.Get(ctx, name, metav1.GetOptions{})
		return err == nil && claim.Status.Capacity.Storage().Cmp(want) >= 0, err
	})
}

// End deletes pods and their claims, and waits until these and all PersistentVolumes are gone.
func (b *Bed) End(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := b.Client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		err := b.Client.CoreV1().PersistentVolumeClaims(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return await(ctx, func() (bool, error) {
		for _, name := range names {
			_, err := b.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				_, err = b.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
			}
			if !apierrors.IsNotFound(err) {
				return false, err
			}
		}
		volumes, err := b.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		return err == nil && len(volumes.Items) == 0, err
	})
}

func await(ctx context.Context, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if yes, err := done(); yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
