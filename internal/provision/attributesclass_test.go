package provision_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func attributes(name, driver string, parameters map[string]string) *storagev1.VolumeAttributesClass {
	return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driver, Parameters: parameters}
}

// asking returns the options of a claim for a CSI volume whose StorageClass has limits.
func asking(name *string) controller.ProvisionOptions {
	o := options("node-1")
	o.PVC.Spec.VolumeAttributesClassName = name
	o.StorageClass = class(func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{"door": "csi", "readBps": "1Mi", "writeIops": "100"}
	})
	return o
}

// The limits of a VolumeAttributesClass replace those of the StorageClass.
func TestProvisionWithAttributesClass(t *testing.T) {
	for name, tt := range map[string]struct {
		asks   *string
		limits string
		class  *string
	}{
		"none":  {nil, "rbps=1048576 wbps=max riops=max wiops=100", nil},
		"empty": {ptr(""), "rbps=1048576 wbps=max riops=max wiops=100", nil},
		"one":   {ptr("gold"), "rbps=max wbps=2097152 riops=max wiops=max", ptr("gold")},
		"free":  {ptr("free"), "", ptr("free")},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCast(t)
			c.attributes = []*storagev1.VolumeAttributesClass{
				attributes("gold", pv.Provisioner, map[string]string{"writeBps": "2Mi"}), attributes("free", pv.Provisioner, map[string]string{"writeBps": "max"}),
			}
			got, _, err := c.provisioner(t).Provision(context.Background(), asking(tt.asks))
			require.NoError(t, err)
			require.Equal(t, tt.limits, got.Annotations[pv.AnnotationIOLimits])
			require.Equal(t, tt.class, got.Spec.VolumeAttributesClassName)
		})
	}
}

func TestProvisionRefusesAttributesClass(t *testing.T) {
	for name, tt := range map[string]struct {
		unread error
		code   codes.Code
		says   string
	}{
		"none":    {nil, codes.Unknown, `VolumeAttributesClass "none" does not exist; create it`},
		"away":    {errors.New("connection refused"), codes.Unknown, `get VolumeAttributesClass "away": connection refused`},
		"foreign": {nil, codes.InvalidArgument, `VolumeAttributesClass "foreign" is for the driver "example.org", and the class of the claim for "flexlvm.io"; name one of flexlvm.io`},
		"bad":     {nil, codes.InvalidArgument, `VolumeAttributesClass "bad": writeBps "fast": is not a rate`},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCast(t)
			c.unread = tt.unread
			c.attributes = []*storagev1.VolumeAttributesClass{
				attributes("foreign", "example.org", map[string]string{"iops": "1"}), attributes("bad", pv.Provisioner, map[string]string{"writeBps": "fast"}),
			}
			got, state, err := c.provisioner(t).Provision(context.Background(), asking(&name))
			require.Nil(t, got)
			require.ErrorContains(t, err, tt.says)
			require.Equal(t, tt.code, status.Code(err))
			require.Equal(t, controller.ProvisioningFinished, state)
			require.Equal(t, map[bool]int{true: 1}[tt.code == codes.InvalidArgument], c.refused)
		})
	}
}

// A claim that is refused for its VolumeAttributesClass holds back the other claims of its pod, too.
func TestProvisionNothingBesideARefusedAttributesClass(t *testing.T) {
	for name, says := range map[string]string{
		"none": "does not exist", "foreign": `is for the driver "example.org"`, "gold": `layout "directory" has no limits on IO`,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCast(t)
			c.attributes = []*storagev1.VolumeAttributesClass{
				attributes("foreign", "example.org", nil), attributes("gold", pv.Provisioner, map[string]string{"writeBps": "2Mi"}),
			}
			c.classes = append(c.classes, class(func(c *storagev1.StorageClass) {
				c.Name = "limitless"
				c.Parameters = map[string]string{"door": "csi", "layout": "directory", "directoryPool": "directories", "trustPods": "true"}
			}))
			c.claims = []*corev1.PersistentVolumeClaim{other("log", "1Gi", func(c *corev1.PersistentVolumeClaim) {
				c.Spec.StorageClassName, c.Spec.VolumeAttributesClassName = ptr("limitless"), &name
			}), other("db-0-scratch", "64Mi", nil)}
			c.pods = []*corev1.Pod{using("data", "log")}
			before, _ := c.ledger.Offer("node-1", volume.Spec{Group: "flexlvm"})
			_, state, err := c.provisioner(t).Provision(t.Context(), options("node-1"))
			require.ErrorContains(t, err, `pod "db-0", which uses this claim, also needs claim "log": `)
			require.ErrorContains(t, err, says)
			require.Equal(t, controller.ProvisioningNoChange, state)
			after, _ := c.ledger.Offer("node-1", volume.Spec{Group: "flexlvm"})
			require.Equal(t, before, after, "nothing is reserved")
		})
	}
}
