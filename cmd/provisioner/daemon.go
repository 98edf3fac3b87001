package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/logging"
	"github.com/flexlvm/flexlvm/internal/serve"
	"github.com/flexlvm/flexlvm/internal/version"
)

// namespaceFile contains the namespace of the pod.
const namespaceFile = kube.ServiceAccountDir + "/namespace"

// commonOptions holds the flags that all control-plane programs share.
type commonOptions struct {
	kubeconfig string
	http       serve.Options
	workers    int
	qps        float32
	burst      int
	logLevel   string
	logFormat  string
	lease      controlplane.Lease
}

func (d *commonOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&d.kubeconfig, "kubeconfig", "", "kubeconfig file for the API server; empty: the pod's service account")
	d.http.Flags(f, ":8080")
	f.StringVar(&d.lease.Namespace, "namespace", "", "namespace of the leader's Lease (default: the pod's namespace, else flexlvm-system)")
	f.DurationVar(&d.lease.Duration, "lease-duration", 15*time.Second, "time after which another instance takes over from a leader that has stopped renewing its lease; longer than --lease-renew-deadline")
	f.DurationVar(&d.lease.Renew, "lease-renew-deadline", 10*time.Second, "time that the leader retries to renew its lease before it exits; longer than --lease-retry-period")
	f.DurationVar(&d.lease.Retry, "lease-retry-period", 2*time.Second, "interval between attempts to acquire or renew the lease")
	f.IntVar(&d.workers, "workers", 10, "number of claims to work on concurrently")
	f.Float32Var(&d.qps, "kube-api-qps", 200, "maximum average requests per second to the API server")
	f.IntVar(&d.burst, "kube-api-burst", 400, "maximum number of requests to the API server in a burst")
	f.StringVar(&d.logLevel, "log-level", "info", "lowest level that is logged: error, warning, info, debug or trace")
	f.StringVar(&d.logFormat, "log-format", "json", "format of the log: json or text")
}

// A service is what a control-plane program does.
type service struct {
	name     string // for the log
	registry prometheus.Gatherer
	// ready, unless nil, returns once the API server has provided what has to be known first.
	ready   func(context.Context, clients) error
	leading func(bool) // records whether the lease is held
	// background, unless nil, runs with and without the lease. If it fails, serve fails too.
	background func(context.Context, clients) error
	// work runs while the lease is held.
	work func(context.Context, clients) error
}

// serve runs a service until ctx is done.
func (d *commonOptions) serve(ctx context.Context, s service) error {
	if err := d.check(); err != nil {
		return err
	}
	log, err := logging.New(os.Stderr, d.logFormat, d.logLevel)
	if err != nil {
		return err
	}
	logger := logging.Logr(log)
	klog.SetLoggerWithOptions(logger, klog.ContextualLogger(true))
	ctx = klog.NewContext(ctx, logger)

	c, err := d.clients()
	if err != nil {
		return err
	}
	// The health check tolerates an unreachable API server slightly longer than the leader does, which then
	// terminates itself.
	health := leaderelection.NewLeaderHealthzAdaptor(d.lease.Duration)
	server := serve.New(s.registry, serve.Health{Check: health.Check, Unready: func() string { return "the API server has not answered yet" }})
	at, err := server.Listen(ctx, d.http, c.config)
	if err != nil {
		return err
	}
	defer func() {
		if err := server.Close(); err != nil {
			logger.Error(err, "Health checks in progress are aborted")
		}
	}()
	logger.Info(s.name+" starts", "version", version.String, "address", at.Metrics, "health", at.Health, "lease", d.lease.Namespace, "identity", d.lease.Identity)

	if s.ready != nil {
		if err := s.ready(ctx, c); err != nil {
			if ctx.Err() != nil {
				return nil // stopped before the API server ever answered
			}
			return err
		}
	}
	server.Ready()
	if err := s.lead(ctx, c, d.lease, health); err != nil {
		return err
	}
	logger.Info(s.name + " has ended")
	return nil
}

// lead works whenever this process holds the lease, until ctx is done.
func (s service) lead(ctx context.Context, c clients, lease controlplane.Lease, health *leaderelection.HealthzAdaptor) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var failed, alwaysErr error
	var done sync.WaitGroup
	if s.background != nil {
		done.Go(func() {
			alwaysErr = s.background(ctx, c)
			stop()
		})
	}
	err := lease.Lead(ctx, c.lock, health, func(ctx context.Context) {
		s.leading(true)
		failed = s.work(ctx, c)
		s.leading(false)
	})
	stop()
	if errors.Is(err, controlplane.ErrLeaseLost) {
		return err // without waiting, because another leader already works
	}
	done.Wait()
	return errors.Join(err, failed, alwaysErr)
}

// check validates the flags and fills in the namespace and the identity of this process.
func (d *commonOptions) check() error {
	l := &d.lease
	switch {
	case d.workers < 1:
		return fmt.Errorf("--workers is %d; give 1 or more", d.workers)
	case d.qps <= 0 || d.burst < 1:
		return fmt.Errorf("--kube-api-qps is %g and --kube-api-burst is %d; both must be more than 0", d.qps, d.burst)
	case l.Retry <= 0 || l.Renew <= l.Retry || l.Duration <= l.Renew:
		return fmt.Errorf("--lease-duration %s must be more than --lease-renew-deadline %s, and that more than --lease-retry-period %s", l.Duration, l.Renew, l.Retry)
	}
	if err := d.http.Check(); err != nil {
		return err
	}
	if l.Namespace == "" {
		l.Namespace = ownNamespace()
	}
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the hostname: %w", err)
	}
	// Two processes on one host must not both consider themselves the leader.
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

// Requests per second, on average and in bursts, of all clients except work. Together with work's
// --kube-api-qps they are the most that a provisioner sends to an API server.
const (
	capacityQPS, capacityBurst = 50, 100
	eventQPS, eventBurst       = 50, 100
	lossQPS, lossBurst         = 20, 40
	modifyQPS, modifyBurst     = 10, 20
)

// clients are the clients of the API server, each with its own rate limit, so that a burst of one kind of
// request does not delay the others.
type clients struct {
	config  *rest.Config         // the configuration of work
	work    kubernetes.Interface // claims and PersistentVolumes; events go through a separate client
	storage *kube.Client         // NodeStorages and VolumeManagers
	// capacities publishes the capacity for the scheduler, which must not wait behind a burst of claims.
	capacities kubernetes.Interface
	// loss releases the claims of lost nodes, and nodes lists the metadata of nodes.
	loss  kubernetes.Interface
	nodes *kube.Client
	lock  kubernetes.Interface // the lease: the leader must not be late
	// modify changes existing volumes for sidecars.
	modify kubernetes.Interface
}

func (d *commonOptions) clients() (c clients, err error) {
	config, err := kube.Config(d.kubeconfig, kube.ServiceAccountDir)
	if err != nil {
		return c, err
	}
	rest.AddUserAgent(config, "flexlvm-provisioner/"+version.String)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	limited := func(qps float32, burst int) *rest.Config {
		out := rest.CopyConfig(config)
		out.QPS, out.Burst = qps, burst
		return out
	}
	forLock := rest.CopyConfig(config)
	forLock.Timeout = d.lease.Renew / 2 // a request that hangs leaves time for another one
	forLoss := limited(lossQPS, lossBurst)
	c.config = limited(d.qps, d.burst)
	var events kubernetes.Interface
	for _, one := range []struct {
		of     string
		config *rest.Config
		client *kubernetes.Interface
	}{
		{"claims", c.config, &c.work}, {"events", limited(eventQPS, eventBurst), &events},
		{"capacities", limited(capacityQPS, capacityBurst), &c.capacities}, {"lost nodes", forLoss, &c.loss}, {"the lease", forLock, &c.lock},
		{"sidecars", limited(modifyQPS, modifyBurst), &c.modify},
	} {
		client, err := kubernetes.NewForConfig(one.config)
		if err != nil {
			return c, fmt.Errorf("create the API client for %s: %w", one.of, err)
		}
		*one.client = client
	}
	c.work = controlplane.WithEvents(c.work, events)
	if c.storage, err = kube.NewClient(c.config); err != nil {
		return c, err
	}
	c.nodes, err = kube.NewClient(forLoss)
	return c, err
}
