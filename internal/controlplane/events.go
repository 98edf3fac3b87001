package controlplane

import (
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// WithEvents returns client with the events interface of a second client, which has its own rate limit:
// the library writes two events for each claim with the client that it is passed, and they must not
// delay PersistentVolumes.
func WithEvents(client, events kubernetes.Interface) kubernetes.Interface {
	return withEvents{client, events}
}

type withEvents struct {
	kubernetes.Interface
	events kubernetes.Interface
}

func (c withEvents) CoreV1() typedcorev1.CoreV1Interface {
	return coreWithEvents{c.Interface.CoreV1(), c.events.CoreV1()}
}

type coreWithEvents struct {
	typedcorev1.CoreV1Interface
	events typedcorev1.EventsGetter
}

func (c coreWithEvents) Events(namespace string) typedcorev1.EventInterface {
	return c.events.Events(namespace)
}
