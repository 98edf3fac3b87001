package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/nfs"
)

type nfsOptions struct {
	commonOptions
	exports   []string
	ioTimeout time.Duration
}

const longNFS = `nfs creates a PersistentVolume for every PersistentVolumeClaim of a StorageClass
whose provisioner is "nfs.flexlvm.io": a directory in an export of an NFS server,
which any number of pods on any nodes may share. When the claim is deleted, the
directory is archived, deleted or retained, as the class says.

Each export must already be mounted for this process, read-write and without root
squashing, and is named with --export, which may be repeated:

  --export nfs.example.org:/srv/flexlvm=/exports/1

Classes select an export by their parameters server and path. If a server does not
answer within --io-timeout, an event on each claim that needs it says so, and the
claim is retried; other claims are served meanwhile.

Several instances may run: the holder of the Lease "nfs.flexlvm.io" works, the
others wait. It serves /healthz, /readyz and /metrics on --address.`

func newNFS() *cobra.Command {
	o := nfsOptions{}
	o.lease.Name = nfs.Name
	cmd := &cobra.Command{
		Use:   "nfs --export SERVER:/PATH=/DIR ...",
		Short: "Create directories on NFS servers for claims of classes of nfs.flexlvm.io",
		Long:  longNFS,
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&o.exports, "export", nil, "export and the directory where it is mounted for this process, as SERVER:/PATH=/DIR; may be repeated")
	f.DurationVar(&o.ioTimeout, "io-timeout", 30*time.Second, "timeout of one operation on a server, 1s or more; then an event on the claim says that the server does not answer")
	o.flags(cmd)
	return cmd
}

func (o nfsOptions) run(ctx context.Context) error {
	if o.ioTimeout < time.Second {
		return fmt.Errorf("--io-timeout is %s; give 1s or more", o.ioTimeout)
	}
	exports, err := nfs.ParseExports(o.exports)
	if err != nil {
		return err
	}
	metrics, cluster := nfs.NewMetrics(), ""
	return o.serve(ctx, service{
		name: "flexlvm provisioner of NFS", registry: metrics.Registry, leading: metrics.Leading,
		ready: func(ctx context.Context, c clients) (err error) {
			cluster, err = kube.AwaitClusterUID(ctx, c.work.CoreV1().RESTClient())
			return err
		},
		work: func(ctx context.Context, c clients) error {
			return nfs.Work(ctx, nfs.Config{Client: c.work, Exports: exports, Cluster: cluster, IOTimeout: o.ioTimeout, Workers: o.workers, Metrics: metrics})
		},
	})
}
