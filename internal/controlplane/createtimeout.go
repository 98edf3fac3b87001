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
//
// The library does not return what the API server has stored either: created, unless nil, is called with it.
func WithCreateTimeout(client kubernetes.Interface, timeout time.Duration, created func(*corev1.PersistentVolume)) kubernetes.Interface {
	return withCreateTimeout{client, timeout, created}
}

type withCreateTimeout struct {
	kubernetes.Interface
	timeout time.Duration
	created func(*corev1.PersistentVolume)
}

func (c withCreateTimeout) CoreV1() typedcorev1.CoreV1Interface {
	return coreWithCreateTimeout{c.Interface.CoreV1(), c.timeout, c.created}
}

type coreWithCreateTimeout struct {
	typedcorev1.CoreV1Interface
	timeout time.Duration
	created func(*corev1.PersistentVolume)
}

func (c coreWithCreateTimeout) PersistentVolumes() typedcorev1.PersistentVolumeInterface {
	return volumesWithCreateTimeout{c.CoreV1Interface.PersistentVolumes(), c.timeout, c.created}
}

type volumesWithCreateTimeout struct {
	typedcorev1.PersistentVolumeInterface
	timeout time.Duration
	created func(*corev1.PersistentVolume)
}

func (v volumesWithCreateTimeout) Create(ctx context.Context, object *corev1.PersistentVolume, options metav1.CreateOptions) (*corev1.PersistentVolume, error) {
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	made, err := v.PersistentVolumeInterface.Create(ctx, object, options)
	if err == nil && v.created != nil {
		v.created(made)
	}
	return made, err
}
