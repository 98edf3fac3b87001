package provision

import (
	"context"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
)

// LocalVolumes is the loop without its watches, for tests.
type LocalVolumes struct{ localVolumes }

func NewLocalVolumes(p *Provisioner, client kubernetes.Interface, api LocalVolumeAPI, reports cache.Store) *LocalVolumes {
	return &LocalVolumes{localVolumes{
		provisioner: p, client: client, api: api, reports: reports,
		retries: controlplane.NewRetries[localAttempt](localEvery, localRetry), now: time.Now,
	}}
}

func (l *LocalVolumes) Sync(ctx context.Context, o *flexlvmv1.LocalVolume) { l.sync(ctx, o) }

func (l *LocalVolumes) At(now func() time.Time) { l.now = now }
