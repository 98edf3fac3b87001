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
	exports  []string
	patience time.Duration
}

const longNFS = `nfs makes a PersistentVolume for every PersistentVolumeClaim of a StorageClass
whose provisioner is "nfs.flexlvm.io": a directory of its own in an export of an
NFS server, which any number of pods on any nodes may share. When the claim is
gone, the directory is archived, deleted or retained, as the class says.

Each export must be mounted for this process already, read-write and with root
not squashed, and is named with --export, as often as there are exports:

  --export nfs.example.org:/srv/flexlvm=/exports/1

Classes name it by their parameters server and path. A server that does not
answer is waited for as long as --io-timeout says; the claims that need it are
told so in events and tried again, and others are served meanwhile.

Several may run; the one that holds the Lease "nfs.flexlvm.io" works.
/healthz, /readyz and /metrics are served on --address.`

func newNFS() *cobra.Command {
	o := nfsOptions{}
	o.lease.Name = nfs.Name
	cmd := &cobra.Command{
		Use:   "nfs --export SERVER:/PATH=/DIR ...",
		Short: "Make directories on NFS servers for claims of classes of nfs.flexlvm.io",
		Long:  longNFS,
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&o.exports, "export", nil, "an export and where it is mounted here, SERVER:/PATH=/DIR; may be given several times")
	f.DurationVar(&o.patience, "io-timeout", 30*time.Second, "how long a server may take for one step before the claim is told that it does not answer")
	o.flags(cmd)
	return cmd
}

func (o nfsOptions) run(ctx context.Context) error {
	if o.patience < time.Second {
		return fmt.Errorf("--io-timeout is %s; give 1s or more", o.patience)
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
			return nfs.Work(ctx, nfs.Config{Client: c.work, Exports: exports, Cluster: cluster, Patience: o.patience, Workers: o.workers, Metrics: metrics})
		},
	})
}
