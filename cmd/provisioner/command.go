package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/record"

	"github.com/flexlvm/flexlvm/internal/dataset"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/version"
)

type options struct {
	commonOptions
	lossGrace time.Duration
	loader    string
	shares    []string
	avoidBusy bool
	groups    []string
	door      string
	socket    string
	snapshots string
}

const long = `provisioner creates a PersistentVolume for every PersistentVolumeClaim of a
StorageClass whose provisioner is "flexlvm.io", on the node that the scheduler has
selected. It creates nothing on the node: the node daemon creates the logical
volume, or the driver does when a pod first mounts it.

Several instances may run: the holder of the Lease "flexlvm.io" works, the others
wait. If a claim cannot be served, an event on the claim says why:

  kubectl describe pvc NAME

It serves /healthz, /readyz and /metrics on --address.

The command nfs creates directories on NFS servers instead, for classes whose
provisioner is "nfs.flexlvm.io".`

func command() *cobra.Command {
	o := options{}
	o.lease.Name = pv.Provisioner
	cmd := &cobra.Command{
		Use:           "provisioner",
		Short:         "Create PersistentVolumes for claims of flexlvm classes",
		Long:          long,
		Version:       version.String,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.flags(cmd)
	f.DurationVar(&o.lossGrace, "node-loss-grace", 5*time.Minute, "minimum time that the Node of a node with volumes is missing from the API before the node counts as lost, 1s or more")
	f.StringVar(&o.loader, "loader-image", "", "image of the loaders of datasets, which contains /fetch; empty: VolumeManagers are not processed")
	f.StringArrayVar(&o.shares, "dataset-nfs", nil, "NFS share that datasets may use, with everything below it, as SERVER:/PATH; may be repeated; without it they may use any share, with \"none\" no share")
	f.BoolVar(&o.avoidBusy, "avoid-busy-disks", false, "make the scheduler prefer nodes whose disks are less busy, among those where a claim fits")
	f.StringVar(&o.door, "door", string(pv.Flex), "driver for volumes of classes without the parameter "+pv.ParameterDoor+": flex, or csi if the CSI driver runs on the nodes")
	f.StringVar(&o.socket, "controller-socket", "", "path of a socket to serve CSI's controller service on for csi-resizer, which applies VolumeAttributesClasses; empty: none")
	f.StringVar(&o.snapshots, "snapshot-socket", "", "path of a socket to serve CSI's controller service on for csi-snapshotter, which takes VolumeSnapshots and waits while this process does not hold the lease; empty: none")
	f.StringArrayVar(&o.groups, "node-group", nil, "pools of a new node with the label "+pv.LabelNodeGroup+" NAME, for the cluster autoscaler, as NAME=POOL:SIZE[+SIZE][,POOL:SIZE]; may be repeated, once per group")
	cmd.AddCommand(newNFS())
	return cmd
}

func (o options) run(ctx context.Context) error {
	if o.lossGrace < time.Second {
		return fmt.Errorf("--node-loss-grace is %s; give 1s or more", o.lossGrace)
	}
	door, err := pv.ParseDoor("--door", o.door)
	if err != nil {
		return err
	}
	groups, err := provision.ParseNodeGroups(o.groups)
	if err != nil {
		return err
	}
	metrics, shown := provision.NewMetrics(), dataset.NewMetrics()
	metrics.Registry.MustRegister(shown)
	cluster, sidecars := "", &sidecars{options: o}
	return o.serve(ctx, service{
		name: "flexlvm provisioner", registry: metrics.Registry,
		ready: func(ctx context.Context, c clients) (err error) {
			cluster, err = kube.AwaitClusterUID(ctx, c.work.CoreV1().RESTClient())
			return err
		},
		leading:    metrics.Leading,
		background: sidecars.serve,
		work: func(ctx context.Context, c clients) error {
			return provision.Work(ctx, provision.Config{
				Client: c.work, Capacities: c.capacities, Loss: c.loss, ListNodes: c.nodes.NodeMetadata, Storage: c.storage, Cluster: cluster, Namespace: o.lease.Namespace, Metrics: metrics, Workers: o.workers,
				NodeLossGrace: o.lossGrace, AvoidBusy: o.avoidBusy, NodeGroups: groups, Door: door, Datasets: o.datasets(c, cluster, door, shown), Snapshots: sidecars.lead,
			})
		},
	})
}

// datasets returns the function that reconciles VolumeManagers; nil if there is no loader image.
func (o options) datasets(c clients, cluster string, door pv.Door, metrics *dataset.Metrics) func(context.Context, provision.Listers, record.EventRecorder) error {
	if o.loader == "" {
		return nil
	}
	return func(ctx context.Context, seen provision.Listers, events record.EventRecorder) error {
		return dataset.Work(ctx, dataset.Config{
			REST: c.config, Pods: c.storage.PodsOfNamespace, Image: o.loader, Cluster: cluster, Namespace: o.lease.Namespace, Door: door, Nodes: seen.Nodes, Classes: seen.Classes, Report: seen.Report, Events: events, Shares: o.shares, Metrics: metrics,
		})
	}
}
