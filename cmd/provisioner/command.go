package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/dataset"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/logging"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/serve"
	"github.com/flexlvm/flexlvm/internal/version"
)

// namespaceFile tells a pod its namespace.
const namespaceFile = kube.ServiceAccountDir + "/namespace"

type options struct {
	kubeconfig string
	address    string
	workers    int
	lossGrace  time.Duration
	loader     string
	avoidBusy  bool
	qps        float32
	burst      int
	logLevel   string
	logFormat  string
	lease      provision.Lease
}

const long = `provisioner makes a PersistentVolume for every PersistentVolumeClaim of a
StorageClass whose provisioner is "flexlvm.io", on the node that the scheduler
chose. It creates nothing on the node: the driver there cuts the logical volume
when a pod first mounts it.

Several may run; the one that holds the Lease "flexlvm.io" works, the others
wait. A claim that cannot be served is told why in an event:

  kubectl describe pvc NAME

/healthz, /readyz and /metrics are served on --address.`

func command() *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:           "provisioner",
		Short:         "Make PersistentVolumes for claims of flexlvm classes",
		Long:          long,
		Version:       version.String,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "file that says how to reach the API server; empty inside a cluster: the pod's service account")
	f.StringVar(&o.address, "address", ":8080", "address for /healthz, /readyz and /metrics")
	f.StringVar(&o.lease.Namespace, "namespace", "", "namespace of the leader lease (default: the pod's own, else flexlvm-system)")
	f.DurationVar(&o.lease.Duration, "lease-duration", 15*time.Second, "how long a leader that died keeps the others waiting")
	f.DurationVar(&o.lease.Renew, "lease-renew-deadline", 10*time.Second, "how long the leader tries to renew its lease before it ends itself; less than --lease-duration")
	f.DurationVar(&o.lease.Retry, "lease-retry-period", 2*time.Second, "how often the lease is looked at; less than --lease-renew-deadline")
	f.IntVar(&o.workers, "workers", 10, "how many claims to work on at the same time")
	f.DurationVar(&o.lossGrace, "node-loss-grace", 5*time.Minute, "how long a node that bears volumes must be gone from the API before it counts as lost")
	f.StringVar(&o.loader, "loader-image", "", "image of the loaders of datasets, which has /fetch; empty: VolumeManagers are left alone")
	f.BoolVar(&o.avoidBusy, "avoid-busy-disks", false, "let the scheduler prefer nodes whose disks have less to do, among those where a claim fits")
	f.Float32Var(&o.qps, "kube-api-qps", 100, "most requests per second to the API server, on average")
	f.IntVar(&o.burst, "kube-api-burst", 200, "most requests to the API server at once")
	f.StringVar(&o.logLevel, "log-level", "info", "error, warning, info, debug or trace")
	f.StringVar(&o.logFormat, "log-format", "json", "json or text")
	return cmd
}

func (o options) run(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	log, err := logging.New(os.Stderr, o.logFormat, o.logLevel)
	if err != nil {
		return err
	}
	logger := logging.Logr(log)
	klog.SetLoggerWithOptions(logger, klog.ContextualLogger(true))
	ctx = klog.NewContext(ctx, logger)

	config, work, storage, lock, err := o.clients()
	if err != nil {
		return err
	}
	metrics := provision.NewMetrics()
	// The health check bears with an API server that is away a little longer than
	// the leader does, which ends itself.
	health := leaderelection.NewLeaderHealthzAdaptor(o.lease.Duration)
	server := serve.New(metrics.Registry, serve.Health{Check: health.Check, Unready: "the API server has not answered yet"})
	address, err := server.Listen(ctx, o.address)
	if err != nil {
		return err
	}
	defer func() {
		if err := server.Close(); err != nil {
			logger.Error(err, "Health checks that were being answered are cut off")
		}
	}()
	logger.Info("flexlvm provisioner starts", "version", version.String, "address", address.String(), "lease", o.lease.Namespace, "identity", o.lease.Identity)

	cluster, err := kube.AwaitClusterUID(ctx, work.CoreV1().RESTClient())
	if err != nil {
		if ctx.Err() != nil {
			return nil // told to end before the API server ever answered
		}
		return err
	}
	server.Ready()
	var failed error
	err = o.lease.Lead(ctx, lock, health, func(ctx context.Context) {
		metrics.Leading(true)
		failed = provision.Work(ctx, provision.Config{
			Client: work, Storage: storage, Cluster: cluster, Namespace: o.lease.Namespace, Metrics: metrics, Workers: o.workers,
			NodeLossGrace: o.lossGrace, AvoidBusy: o.avoidBusy, Beside: o.datasets(config, cluster),
		})
		metrics.Leading(false)
	})
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	logger.Info("flexlvm provisioner has ended")
	return nil
}

// check validates the flags and fills in what depends on where we run.
func (o *options) check() error {
	l := &o.lease
	switch {
	case o.workers < 1:
		return fmt.Errorf("--workers is %d; give 1 or more", o.workers)
	case o.lossGrace < time.Second:
		return fmt.Errorf("--node-loss-grace is %s; give 1s or more", o.lossGrace)
	case o.qps <= 0 || o.burst < 1:
		return fmt.Errorf("--kube-api-qps is %g and --kube-api-burst is %d; both must be more than 0", o.qps, o.burst)
	case l.Retry <= 0 || l.Renew <= l.Retry || l.Duration <= l.Renew:
		return fmt.Errorf("--lease-duration %s must be more than --lease-renew-deadline %s, and that more than --lease-retry-period %s", l.Duration, l.Renew, l.Retry)
	}
	if l.Namespace == "" {
		l.Namespace = ownNamespace()
	}
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the hostname: %w", err)
	}
	// Two processes on one host must not both believe they are the leader.
	l.Identity = hostname + "_" + uuid.NewString()
	return nil
}

func ownNamespace() string {
	data, err := os.ReadFile(namespaceFile)
	if name := strings.TrimSpace(string(data)); err == nil && name != "" {
		return name
	}
	return "flexlvm-system"
}

// clients gives clients for the work and one for the lease: a burst of claims must
// not make the leader late.
// datasets carries out VolumeManagers, where there is a loader to do it with.
func (o options) datasets(config *rest.Config, cluster string) func(context.Context, provision.Listers, record.EventRecorder) error {
	if o.loader == "" {
		return nil
	}
	return func(ctx context.Context, seen provision.Listers, events record.EventRecorder) error {
		return dataset.Work(ctx, dataset.Config{
			REST: config, Image: o.loader, Cluster: cluster, Nodes: seen.Nodes, Classes: seen.Classes, Events: events,
		})
	}
}

func (o options) clients() (config *rest.Config, work kubernetes.Interface, storage *kube.Client, lock kubernetes.Interface, err error) {
	config, err = kube.Config(o.kubeconfig, kube.ServiceAccountDir)
	if err != nil {
		return nil, nil, nil, nil, err
	}
	rest.AddUserAgent(config, "flexlvm-provisioner/"+version.String)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	forLock := rest.CopyConfig(config)
	forLock.Timeout = o.lease.Renew / 2 // a request that hangs must leave time for another
	config.QPS, config.Burst = o.qps, o.burst
	if work, err = kubernetes.NewForConfig(config); err != nil {
		return nil, nil, nil, nil, fmt.Errorf("make the API client: %w", err)
	}
	if storage, err = kube.NewClient(config); err != nil {
		return nil, nil, nil, nil, err
	}
	if lock, err = kubernetes.NewForConfig(forLock); err != nil {
		return nil, nil, nil, nil, fmt.Errorf("make the API client of the lease: %w", err)
	}
	return config, work, storage, lock, nil
}
