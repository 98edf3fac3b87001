package provision

import (
	"context"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// LocalVolumes is the loop without its watches, for tests.
type LocalVolumes struct{ localVolumes }

func NewLocalVolumes(p *Provisioner, client kubernetes.Interface, api LocalVolumeAPI, reports cache.Store) *LocalVolumes {
	return &LocalVolumes{localVolumes{provisioner: p, client: client, api: api, reports: reports}}
}

func (l *LocalVolumes) Settle(ctx context.Context, o *flexlvmv1.LocalVolume) { l.settle(ctx, o) }
