package controlplane

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// WithCreateTimeout returns client with a limit on the time that the creation of a PersistentVolume takes. The
// library passes no deadline, and client-go repeats a request up to ten times while an API server that is
// overloaded (code 429) asks for it, with pauses of any length: the room would not be reserved for so long.
func WithCreateTimeout(client kubernetes.Interface, timeout time.Duration) kubernetes.Interface {
	return withCreateTimeout{client, timeout}
}

type withCreateTimeout struct {
	kubernetes.Interface
	timeout time.Duration
}

func (c withCreateTimeout) CoreV1() typedcorev1.CoreV1Interface {
	return coreWithCreateTimeout{c.Interface.CoreV1(), c.timeout}
}

type coreWithCreateTimeout struct {
	typedcorev1.CoreV1Interface
	timeout time.Duration
}

func (c coreWithCreateTimeout) PersistentVolumes() typedcorev1.PersistentVolumeInterface {
	return volumesWithCreateTimeout{c.CoreV1Interface.PersistentVolumes(), c.timeout}
}

type volumesWithCreateTimeout struct {
	typedcorev1.PersistentVolumeInterface
	timeout time.Duration
}

func (v volumesWithCreateTimeout) Create(ctx context.Context, object *corev1.PersistentVolume, options metav1.CreateOptions) (*corev1.PersistentVolume, error) {
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	return v.PersistentVolumeInterface.Create(ctx, object, options)
}
