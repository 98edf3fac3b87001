package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// Events returns a sink for a record.EventBroadcaster.
func (c *Client) Events(ctx context.Context) record.EventSink { return sink{ctx, c} }

// The broadcaster looks at the very type of an error, so none is wrapped.
type sink struct {
	ctx    context.Context
	client *Client
}

func (s sink) Create(e *corev1.Event) (*corev1.Event, error) {
	out := &corev1.Event{}
	return out, s.client.send(s.ctx, s.client.core.Post().Namespace(e.Namespace).Resource("events").Body(e), out)
}

func (s sink) Update(e *corev1.Event) (*corev1.Event, error) {
	out := &corev1.Event{}
	return out, s.client.send(s.ctx, s.client.core.Put().Namespace(e.Namespace).Resource("events").Name(e.Name).Body(e), out)
}

func (s sink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	out := &corev1.Event{}
	request := s.client.core.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).Body(patch)
	return out, s.client.send(s.ctx, request, out)
}
