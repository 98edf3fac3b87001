package kube

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
)

// LocalVolume returns the current LocalVolume.
func (c *Client) LocalVolume(ctx context.Context, namespace, name string) (*flexlvmv1.LocalVolume, error) {
	out := &flexlvmv1.LocalVolume{}
	request := c.flexlvm.Get().Namespace(namespace).Resource("localvolumes").Name(name)
	return out, c.do(ctx, fmt.Sprintf("get LocalVolume %s/%s", namespace, name), request, out)
}

// SetLocalVolumeFinalizers sets the finalizers of o, if the object still has o's resourceVersion.
func (c *Client) SetLocalVolumeFinalizers(ctx context.Context, o *flexlvmv1.LocalVolume, finalizers []string) (*flexlvmv1.LocalVolume, error) {
	what := fmt.Sprintf("write the finalizers of LocalVolume %s/%s", o.Namespace, o.Name)
	out := &flexlvmv1.LocalVolume{}
	request := c.flexlvm.Patch(types.MergePatchType).Namespace(o.Namespace).Resource("localvolumes").Name(o.Name).Body(kubeobject.FinalizersPatch(o, finalizers))
	return out, c.do(ctx, what, request, out)
}

// UpdateLocalVolumeStatus updates the status of o, if o is current.
func (c *Client) UpdateLocalVolumeStatus(ctx context.Context, o *flexlvmv1.LocalVolume) error {
	request := c.flexlvm.Put().Namespace(o.Namespace).Resource("localvolumes").Name(o.Name).SubResource("status").Body(o)
	return c.do(ctx, fmt.Sprintf("write the status of LocalVolume %s/%s", o.Namespace, o.Name), request, nil)
}
