package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/cgroup"
	commands "github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/discovery"
	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/hostns"
	"github.com/flexlvm/flexlvm/internal/iolimit"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/logging"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
	"github.com/flexlvm/flexlvm/internal/serve"
	"github.com/flexlvm/flexlvm/internal/version"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// nodeVariable is the environment variable with the name of the pod's node.
const nodeVariable = "NODE_NAME"

type options struct {
	node       string
	kubeconfig string
	http       serve.Options
	interval   time.Duration
	listUpTo   int
	policy     eviction.Policy
	dryRun     bool
	wipeRate   string
	deleteRate int64
	trim       nodeagent.Trimming
	trimRate   string
	nfsExports []string
	logLevel   string
	logFormat  string
	hostNS     bool
}

const long = `gc is the node daemon: it manages the volumes of the node that it runs on. A volume
whose PersistentVolume was released or deleted becomes "unreferenced" and keeps its
data until its room is needed: until volumes that are promised on this node do not
fit, or a pool is fuller than --high-threshold-percent. The least recently used are
evicted first. Unreferenced volumes are also evicted to make room for --headroom, if
they have been unreferenced for longer than --max-age, and immediately if their class
says reclaim: immediate. Of volumes with a claim, only replicas of datasets that allow
it are evicted. Volumes without a PersistentVolume are evicted only with
--evict-orphans. Nothing is evicted while the API server does not answer.

It discovers the existing file systems and disks that the VolumeDiscovery selects,
and cleans them once their claims are deleted (docs/static.md).

It creates the volume groups that VolumeGroups declare for its node, only on blank
disks, and removes none (kubectl describe nodestorage NODE).

Every --trim-interval it trims the mounted volumes in thin pools, so that the space of
deleted files returns to the pools.

If the node is an NFS server, it enforces the sizes of an export's volumes whose class
asks for it (docs/jobs.md).

It applies the IO limits in the annotation flexlvm.io/io-limits of a PersistentVolume
to the pods that use the volume.

To see what it finds and does:

  kubectl get nodestorage
  kubectl describe nodestorage NODE
  kubectl describe node NODE

It runs the host's LVM, and therefore enters the host's namespaces first: its pod must
be privileged and have hostPID: true. To run it by hand on a node, beside the node's
daemon, which keeps reporting and uses the default address:

  gc --node-name=NODE --kubeconfig=FILE --dry-run --address=:0

It serves /healthz, /readyz and /metrics on --address.`

func command() *cobra.Command {
	o := options{policy: eviction.DefaultPolicy(), trim: nodeagent.Trimming{Interval: 7 * 24 * time.Hour}}
	cmd := &cobra.Command{
		Use:           "gc",
		Short:         "Release, evict and report the volumes of one node",
		Long:          long,
		Version:       version.String,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return o.start(cmd.Context()) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.node, "node-name", os.Getenv(nodeVariable), "name of the Node that this runs on (default: the environment variable "+nodeVariable+")")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file for the API server; empty: the pod's service account")
	o.http.Flags(f, ":9809")
	f.DurationVar(&o.interval, "interval", time.Minute, "interval between checks of everything while nothing changes, 1s to 10m")
	f.IntVar(&o.listUpTo, "list-volumes-up-to", 5000, "maximum number of PersistentVolumes in the cluster with which decisions are confirmed by listing the node's; with more, they are confirmed by a watch and GETs; 0: the number is no reason to list")
	f.IntVar(&o.policy.HighPercent, "high-threshold-percent", o.policy.HighPercent, "use of a pool at which eviction starts; 100 disables it")
	f.IntVar(&o.policy.LowPercent, "low-threshold-percent", o.policy.LowPercent, "use of a pool at which eviction stops; less than --high-threshold-percent")
	f.DurationVar(&o.policy.MinAge, "min-age", o.policy.MinAge, "minimum time that a volume is unreferenced before it may be evicted, unless its class says reclaim: immediate")
	f.Var(&o.policy.Headroom, "headroom", "space of each volume group that is kept free for future claims, as far as evicting unreferenced volumes can free it: bytes such as 10Gi, a share such as 5%, or auto: the size of the most recently created volumes, up to a tenth of the group; 0: none")
	f.DurationVar(&o.policy.MaxAge, "max-age", o.policy.MaxAge, "maximum time that a volume stays unreferenced; longer than --min-age; 0: until its room is needed")
	f.BoolVar(&o.policy.EvictOrphans, "evict-orphans", o.policy.EvictOrphans, "if room is needed and no unreferenced volume is left, evict volumes without a PersistentVolume (orphans)")
	f.DurationVar(&o.policy.OrphanAge, "orphan-age", o.policy.OrphanAge, "minimum time since an orphan was created or last used before it may be evicted")
	f.IntVar(&o.policy.ThinDataPercent, "thin-data-watermark-percent", o.policy.ThinDataPercent, "use of a thin pool, without volumes that may be evicted, from which on no further volumes are promised in it")
	f.IntVar(&o.policy.ThinMetadataPercent, "thin-metadata-watermark-percent", o.policy.ThinMetadataPercent, "use of a thin pool's metadata from which on volumes are evicted from it and no further volumes are promised in it")
	f.IntVar(&o.policy.OrphanShare, "orphan-share-percent", o.policy.OrphanShare, "maximum percentage of the node's volumes that may be evicted as orphans within --orphan-age, or within an hour if that is longer; at least one volume")
	f.BoolVar(&o.dryRun, "dry-run", false, "only log what would be released and evicted, and change no volume")
	f.StringVar(&o.wipeRate, "wipe-rate", "100Mi", "maximum rate at which volumes are wiped, raw block volumes and discovered disks zeroed, and snapshots copied, in bytes per second; 0: no limit")
	f.Int64Var(&o.deleteRate, "delete-rate", 2000, "maximum number of files per second that are deleted in discovered file systems whose claims are deleted; 0: no limit")
	f.DurationVar(&o.trim.Interval, "trim-interval", o.trim.Interval, "interval between trims of each mounted volume in a thin pool, 1m or more; 0: never")
	f.BoolVar(&o.trim.Thick, "trim-thick", false, "also trim volumes outside of thin pools, for disks that benefit from it")
	f.StringVar(&o.trimRate, "trim-rate", "256Mi", "average rate at which trimming discards, in bytes per second; 0: no limit")
	f.StringSliceVar(&o.nfsExports, "nfs-export", nil, "directory of this node that an NFS server exports, in which the sizes of volumes of classes with enforceSize are enforced; may be repeated; nodes without the directory ignore it")
	f.BoolVar(&o.hostNS, "host-namespaces", true, "enter the host's namespaces first; false if the process already runs on the host")
	f.StringVar(&o.logLevel, "log-level", "info", "lowest level that is logged: error, warning, info, debug or trace")
	f.StringVar(&o.logFormat, "log-format", "json", "format of the log: json or text")
	return cmd
}

// start validates the flags, enters the host's namespaces, where the host's LVM is, by executing the program
// again, and runs the daemon.
func (o options) start(ctx context.Context) error {
	rates, err := o.check()
	if err != nil {
		return err
	}
	log, err := logging.New(os.Stderr, o.logFormat, o.logLevel)
	if err != nil {
		return err
	}
	account := kube.ServiceAccountDir
	if o.hostNS {
		seen, err := hostns.Enter(o.podDirs()...)
		if err != nil {
			return err
		}
		if account, err = o.fromHost(seen); err != nil {
			return err
		}
	}
	// Only now, because the execve would drop a signal that was caught before it.
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return o.run(ctx, log, account, rates)
}

// longestInterval keeps reports recent enough for the provisioner (flexlvmv1.MaxReportAge): the actual interval can
// be a fifth longer than the flag.
const longestInterval = 10 * time.Minute

// rates limit wiping and trimming, in bytes per second; 0 means no limit.
type rates struct{ wipe, trim volume.Bytes }

// check validates the flags that nothing else validates.
func (o options) check() (r rates, err error) {
	if o.node == "" {
		return r, fmt.Errorf("--node-name is empty; give it, or set %s (in a pod from the field spec.nodeName)", nodeVariable)
	}
	if err := o.policy.Validate(); err != nil {
		return r, err
	}
	if o.interval < time.Second || o.interval > longestInterval {
		return r, fmt.Errorf("--interval is %s; give 1s to %s", o.interval, longestInterval)
	}
	if o.trim.Interval != 0 && o.trim.Interval < time.Minute {
		return r, fmt.Errorf("--trim-interval is %s; give 1m or more, or 0 for never", o.trim.Interval)
	}
	if o.deleteRate < 0 {
		return r, fmt.Errorf("--delete-rate is %d; give files per second such as 2000, or 0 for no limit", o.deleteRate)
	}
	if err := o.http.Check(); err != nil {
		return r, err
	}
	if r.wipe, err = rate("--wipe-rate", o.wipeRate); err != nil {
		return r, err
	}
	if _, err := sizeEnforcer(o.nfsExports); err != nil {
		return r, err
	}
	r.trim, err = rate("--trim-rate", o.trimRate)
	return r, err
}

func rate(flag, text string) (volume.Bytes, error) {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return 0, fmt.Errorf("%s is %q; give bytes per second such as 100Mi, or 0 for no limit", flag, text)
	}
	return volume.Bytes(q.Value()), nil
}

func (o options) run(ctx context.Context, log *logrus.Logger, account string, rates rates) error {
	logger := logging.Logr(log)
	klog.SetLoggerWithOptions(logger, klog.ContextualLogger(true))
	ctx = klog.NewContext(ctx, logger)

	registry := serve.NewRegistry()
	metrics := nodeagent.NewMetrics(registry)
	host, release := programsOfHost(logger, commands.New("", log, metrics.CommandDone))
	defer release()
	engine, err := node.New(node.Config{WipeRate: rates.wipe, ZeroRate: rates.wipe}, host)
	if err != nil {
		return err
	}
	sizes, err := sizeEnforcer(o.nfsExports)
	if err != nil {
		return err
	}
	config, err := o.config(account)
	if err != nil {
		return err
	}
	api, err := kube.NewClient(config)
	if err != nil {
		return err
	}
	var server *serve.Server
	acquire, running := node.AcquireDaemonLock, node.DaemonRunning
	if o.dryRun {
		acquire, running = nil, nil // it changes nothing, so it may run next to the daemon
	}
	o.trim.Trimmer, o.trim.Rate = engine, rates.trim
	agent := o.agent(engine, host, log, rates)
	agent.Lock, agent.Locked, agent.Sizes = acquire, node.DaemonRunning, sizes
	daemon, err := nodeagent.New(agent, engine, api, nodeagent.Outlets{Events: kube.NewRecorder(ctx, api, nodeagent.Component, o.node), Metrics: metrics, Ready: func() { server.Ready() }})
	if err != nil {
		return err
	}
	server = serve.New(registry, serve.Health{Check: daemon.Healthy, Unready: daemon.Unready})
	at, err := listen(ctx, running, func() (serve.Addresses, error) { return server.Listen(ctx, o.http, config) })
	if err != nil {
		return err
	}
	defer func() {
		if err := server.Close(); err != nil {
			logger.Error(err, "Health checks in progress are aborted")
		}
	}()
	go giveBack(ctx)
	logger.Info("flexlvm node daemon starts", "version", version.String, "node", o.node, "address", at.Metrics, "health", at.Health, "interval", o.interval.String(), "dryRun", o.dryRun)
	if err := daemon.Run(ctx); err != nil {
		return err
	}
	logger.Info("flexlvm node daemon has ended")
	return nil
}

// agent configures the daemon.
func (o options) agent(engine *node.Engine, host commands.Programs, log logrus.FieldLogger, rates rates) nodeagent.Config {
	return nodeagent.Config{
		Node: o.node, Policy: o.policy, Interval: o.interval, ListUpTo: o.listUpTo, DryRun: o.dryRun,
		Missing: func() []string { return commands.Missing(host.Unkillable, programs()...) },
		IOTime:  lvm.IOTime,
		Fills:   func(ctx context.Context) (map[string]int, error) { return dm.Fills(ctx, host.Unkillable) },
		Groups:  engine,
		Disks:   discovery.NewMachine(host.Unkillable, int64(rates.wipe), o.deleteRate, lvm.CheckNoUsers), DiscoveredFile: filepath.Join(node.DefaultStateDir, "discovered.json"),
		Examine: examiner(engine, host, log, os.Getenv(pluginDirVariable)),
		WokenAt: func() time.Time { return node.WokenAt(node.DefaultStateDir) },
		Mounts:  mount.Watch,
		IO:      iolimit.Host{Groups: cgroup.New(cgroup.Root), Mounts: mount.ByDevice, Watch: mount.Watch},
		Trim:    o.trim,
	}
}

// programsOfHost returns the host's programs; those that must not be killed run in a control group of the host, if
// possible.
func programsOfHost(log logr.Logger, host commands.Programs) (in commands.Programs, release func()) {
	grouped, release, err := cgroup.New(cgroup.Root).InHostGroup(host)
	if err != nil {
		log.Info("LVM runs in the control group of this daemon, with its CPU share and its memory limit", "err", err.Error())
	}
	host.Unkillable = grouped.Unkillable
	return host, release
}

// config returns the configuration for the API server, with the pod's service account or from --kubeconfig. The
// rate limit allows for a daemon that releases hundreds of volumes with several requests for each.
func (o options) config(account string) (*rest.Config, error) {
	config, err := kube.Config(o.kubeconfig, account)
	if err != nil {
		return nil, err
	}
	config.UserAgent = "flexlvm-gc/" + version.String
	config.QPS, config.Burst = 50, 100
	return config, nil
}

// programs returns the host programs that a node requires.
func programs() []string {
	return []string{"lvm", "vgs", "lvs", "pvs", "lvcreate", "lvchange", "lvextend", "lvrename", "lvremove", "mkfs.xfs"}
}
