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

const long = `gc looks after the volumes of the node that it runs on. A volume whose
PersistentVolume was released or deleted becomes "unreferenced" and waits, with
its data, until its room is needed: until volumes that are promised on this node
do not fit, or a pool is fuller than --high-threshold-percent. Then the least
recently used go first. Unreferenced volumes also go in three other cases: to make
room for --headroom; when they have been unreferenced for longer than --max-age; and
at once if their class says reclaim: immediate. Of what still has a claim, only
replicas of datasets go whose dataset allows it. Volumes without a PersistentVolume
go only with --evict-orphans. Nothing goes while the API server does not answer.

It finds the existing file systems and disks that the VolumeDiscovery names, and
cleans them once their claims are gone (docs/static.md).

It makes the volume groups that VolumeGroups declare for its node, of blank disks alone
(kubectl describe nodestorage NODE), and removes none.

Once a week it trims the volumes in thin pools that are mounted: their pools have back
what was deleted in them.

Where the node is an NFS server, it holds the volumes of an export to their size that ask
for it (docs/jobs.md).

It also keeps the limits on IO of the pods that use a volume, as the annotation
flexlvm.io/io-limits of its PersistentVolume says.

What it sees and does:

  kubectl get nodestorage
  kubectl describe nodestorage NODE
  kubectl describe node NODE

It runs the host's own LVM, and so moves into the host's namespaces first: its
pod must be privileged and have hostPID: true. By hand on a node, beside its
daemon, which goes on reporting and has the usual address:

  gc --node-name=NODE --kubeconfig=FILE --dry-run --address=:0

/healthz, /readyz and /metrics are served on --address.`

func command() *cobra.Command {
	o := options{policy: eviction.DefaultPolicy(), trim: nodeagent.Trimming{Interval: 7 * 24 * time.Hour}}
	cmd := &cobra.Command{
		Use:           "gc",
		Short:         "Take back, evict and report the volumes of one node",
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
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "file that says how to reach the API server; empty inside a cluster: the pod's service account")
	o.http.Flags(f, ":9809")
	f.DurationVar(&o.interval, "interval", time.Minute, "how often to check everything when nothing has changed")
	f.IntVar(&o.listUpTo, "list-volumes-up-to", 5000, "confirm a decision by listing the node's PersistentVolumes while the cluster has so many at most; beyond, by a watch and GETs. 0: never list only because they are few")
	f.IntVar(&o.policy.HighPercent, "high-threshold-percent", o.policy.HighPercent, "a pool that is this full starts evicting; 100 never does")
	f.IntVar(&o.policy.LowPercent, "low-threshold-percent", o.policy.LowPercent, "how full a pool may stay once it evicts")
	f.DurationVar(&o.policy.MinAge, "min-age", o.policy.MinAge, "how long a volume is unreferenced at least before it may go, unless its class says reclaim: immediate")
	f.Var(&o.policy.Headroom, "headroom", "how much of each volume group is kept free for claims to come, as far as unreferenced volumes can give it: bytes such as 10Gi, a share such as 5%, or auto: what the volumes take that were made last, and a tenth of the group at most")
	f.DurationVar(&o.policy.MaxAge, "max-age", o.policy.MaxAge, "how long a volume may be unreferenced at most; 0 keeps it until its room is needed")
	f.BoolVar(&o.policy.EvictOrphans, "evict-orphans", o.policy.EvictOrphans, "under pressure, evict volumes without a PersistentVolume, once nothing unreferenced is left")
	f.DurationVar(&o.policy.OrphanAge, "orphan-age", o.policy.OrphanAge, "how long an orphan has neither been made nor used before it may go")
	f.IntVar(&o.policy.ThinDataPercent, "thin-data-watermark-percent", o.policy.ThinDataPercent, "how full a thin pool may be, less what may be evicted, before no more volumes are promised in it")
	f.IntVar(&o.policy.ThinMetadataPercent, "thin-metadata-watermark-percent", o.policy.ThinMetadataPercent, "how full the metadata of a thin pool may be before volumes are evicted from it and no more are promised in it")
	f.IntVar(&o.policy.OrphanShare, "orphan-share-percent", o.policy.OrphanShare, "how many per cent of the node's volumes may go as orphans within --orphan-age, or within an hour where that is less")
	f.BoolVar(&o.dryRun, "dry-run", false, "say in the log what would be released and evicted, and change no volume")
	f.StringVar(&o.wipeRate, "wipe-rate", "100Mi", "how many bytes to wipe, or to copy of a snapshot, in a second; 0 is no bound")
	f.Int64Var(&o.deleteRate, "delete-rate", 2000, "how many files to delete in a second in file systems that the VolumeDiscovery finds and whose claims are gone; 0 is no bound")
	f.DurationVar(&o.trim.Interval, "trim-interval", o.trim.Interval, "how often to trim each volume in a thin pool that is mounted; 0 never does")
	f.BoolVar(&o.trim.Thick, "trim-thick", false, "trim volumes outside of thin pools as well, for the sake of their disk")
	f.StringVar(&o.trimRate, "trim-rate", "256Mi", "how many bytes to discard in a second on average; 0 is no bound")
	f.StringSliceVar(&o.nfsExports, "nfs-export", nil, "a directory of this node that an NFS server exports: volumes of classes with enforceSize are held to their size there; may be given several times, and for nodes that do not have it")
	f.BoolVar(&o.hostNS, "host-namespaces", true, "move into the host's namespaces first; false where the process is on the host already")
	f.StringVar(&o.logLevel, "log-level", "info", "error, warning, info, debug or trace")
	f.StringVar(&o.logFormat, "log-format", "json", "json or text")
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

// longestInterval keeps reports recent enough for the provisioner. It treats a daemon as gone whose report is
// older than 15 minutes, and the actual interval can be a fifth longer than the flag.
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
		return r, fmt.Errorf("--delete-rate is %d; give files a second such as 2000, or 0 for no bound", o.deleteRate)
	}
	if err := o.http.Check(); err != nil {
		return r, err
	}
	if r.wipe, err = rate("--wipe-rate", o.wipeRate); err != nil {
		return r, err
	}
	if _, err := sizeKeeper(o.nfsExports); err != nil {
		return r, err
	}
	r.trim, err = rate("--trim-rate", o.trimRate)
	return r, err
}

func rate(flag, text string) (volume.Bytes, error) {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return 0, fmt.Errorf("%s is %q; give bytes a second such as 100Mi, or 0 for no bound", flag, text)
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
	sizes, err := sizeKeeper(o.nfsExports)
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
	ours := turn(node.DaemonTurn)
	if o.dryRun {
		ours = nil // it changes nothing, so it may run next to the daemon
	}
	o.trim.Trimmer, o.trim.Rate = engine, rates.trim
	agent := o.agent(engine, host, log, rates)
	agent.Turn, agent.Taken, agent.Sizes = ours, node.DaemonWorks, sizes
	daemon, err := nodeagent.New(agent, engine, api, nodeagent.Outlets{Events: kube.NewRecorder(ctx, api, nodeagent.Component, o.node), Metrics: metrics, Ready: func() { server.Ready() }})
	if err != nil {
		return err
	}
	server = serve.New(registry, serve.Health{Check: daemon.Healthy, Unready: daemon.Unready})
	at, err := listen(ctx, ours, func() (serve.Addresses, error) { return server.Listen(ctx, o.http, config) })
	if err != nil {
		return err
	}
	defer func() {
		if err := server.Close(); err != nil {
			logger.Error(err, "Health checks that were being answered are cut off")
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
		Called:  func() time.Time { return node.WokenAt(node.DefaultStateDir) },
		Mounts:  mount.Watch,
		IO:      iolimit.Host{Groups: cgroup.New(cgroup.Root), Mounts: mount.ByDevice, Watch: mount.Watch},
		Trim:    o.trim,
	}
}

// programsOfHost runs the host's programs in a control group of the host, if possible.
func programsOfHost(log logr.Logger, host commands.Programs) (in commands.Programs, release func()) {
	group, err := cgroup.New(cgroup.Root).Own(cgroup.HostPrograms)
	if err != nil {
		log.Info("LVM runs in the control group of this daemon, with its share of the processor and its limit of memory", "err", err.Error())
		return host, func() {}
	}
	host.Unkillable = commands.In(host.Unkillable, group)
	return host, func() { _ = group.Close() }
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
