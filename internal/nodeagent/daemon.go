package nodeagent

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/iolimit"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// settle is how long a round waits for more changes after the first, because changes come in bursts.
	settle = 200 * time.Millisecond
	// maxSettle bounds the pause on a slow machine, which otherwise lasts as long as its rounds take.
	maxSettle = 5 * time.Second
	// wakeupCheck is how often the daemon checks whether a program has woken it.
	wakeupCheck = 200 * time.Millisecond
	// firstRetry is the delay before a failed round is retried. It doubles with each failure, up to the
	// interval.
	firstRetry = time.Second
	// A round times out after roundIntervals intervals, or minRoundTime if that is longer. Its report has publishTime
	// more: if a disk hangs, its round times out, and that is what must be reported.
	roundIntervals, minRoundTime = 4, 4 * time.Minute
	publishTime                  = 30 * time.Second
	// hungMargin is the time of the steps of a round that have no timeout; see hungTime.
	hungMargin = 30 * time.Second
	// syncTime is how long the first round waits for the watches to sync.
	syncTime = 5 * time.Second
)

// Config configures a Daemon.
type Config struct {
	Node     string // name of the Node that the daemon runs on
	Policy   eviction.Policy
	Interval time.Duration // between rounds that nothing triggers; jitter is added
	// ListUpTo is the number of PersistentVolumes in the cluster, of any driver, up to which decisions are
	// confirmed by listing the node's PersistentVolumes. 0 disables this.
	ListUpTo int
	DryRun   bool // log what would be done and change nothing
	Now      func() time.Time
	// Lock acquires the node for this daemon until release is called; acquired is false while another daemon holds
	// the node. nil: there is no other daemon.
	Lock func() (release func(), acquired bool, err error)
	// Locked reports whether another daemon holds the node. If so, a dry run leaves the NodeStorage alone. nil:
	// there is no other daemon.
	Locked func() (bool, error)
	// WokenAt returns when a program on the node last woke the daemon for a round; nil: no program can.
	WokenAt func() time.Time
	// Mounts calls changed after each change of the host's mounts, until ctx ends; nil: they are not watched.
	Mounts func(ctx context.Context, changed func()) error
	// Missing returns the programs that the host lacks.
	Missing func() []string
	IO      iolimit.Host // limits the IO of pods; a dry run sets no limits
	Trim    Trimming     // a dry run trims nothing
	// Groups creates the declared volume groups; nil: no groups are created, as in a dry run.
	Groups GroupMaker
	// Disks finds and cleans the existing file systems and disks that become volumes, and DiscoveredFile
	// records which PersistentVolumes used them; nil: there is no discovery, as in a dry run.
	Disks          Disks
	DiscoveredFile string
	// Sizes enforces the sizes of directories in this node's NFS exports; nil: no sizes are enforced, as in a
	// dry run.
	Sizes SizeEnforcer
	// Examine runs the checks of `flexlvm doctor` on the node and on groups: the node's groups, and those that
	// PersistentVolumes name. It returns failed checks first. If it is nil, the node is not examined.
	Examine func(ctx context.Context, groups []volume.Group) []flexlvmv1.Check
	// Fills returns how full the store of each copy-on-write snapshot of the node is, in per cent, by a stable
	// name. It takes no lock. nil: fill levels are observed in rounds only.
	Fills func(ctx context.Context) (map[string]int, error)
	// IOTime returns how long a disk has been busy; nil: the load is not measured.
	IOTime func(device string) (time.Duration, error)
}

// Outlets are where a daemon reports its actions.
type Outlets struct {
	Events  Recorder
	Metrics *Metrics
	Ready   func() // called after each round that succeeded, or whose report names the programs that the host lacks
}

// A Daemon manages the volumes of one node. All its state can be found out again after a restart.
type Daemon struct {
	cfg     Config
	engine  Engine
	api     *kube.Client
	out     Outlets
	events  events
	watches *watches

	removals, wipes, directoryRemovals *serialQueue[[]job] // of batches; see enqueue

	createQueue     *serialQueue[createJob]
	slowCreateQueue *serialQueue[createJob] // of full copies and raw volumes, which take long
	trimmer         *serialQueue[inventory.Volume]
	ahead           *aheadCreator    // nil in a dry run
	limiter         *iolimit.Limiter // nil if nothing is limited
	declared        *declarations    // nil if no groups are created
	discoverer      *discoverer      // nil if nothing is discovered
	kicks           chan struct{}
	wakeups         chan struct{}             // a program on the node has woken the daemon and waits for a round
	regrouped       chan struct{}             // the node's volume groups differ from the examined ones
	standby         atomic.Bool               // another daemon of this node is still running
	ended           atomic.Pointer[time.Time] // when a round last ended
	examined        atomic.Pointer[examination]
	namedGroups     atomic.Pointer[[]volume.Group] // groups that PersistentVolumes name, as of the last round
	validSnapshots  atomic.Bool                    // there are valid copy-on-write snapshots, according to the last inventory

	blockedUnmounts blockedUnmounts

	// These may be used from several goroutines.
	dedupe           *dedupe
	history          *history
	releasedClaims   *releasedClaims
	proven           *uuidSet // groups in which the last removal succeeded
	removed          *uuidSet // volumes that this process has removed, and an older inventory may still have
	failedEvictions  *failedEvictions
	removalRetries   *backoff
	unanswered       *backoff // volumes about which the API server has not answered whether they may be removed
	keptElsewhere    *backoff // volumes kept by PersistentVolumes that this node's lists lack, and when the API server is asked again
	keptChecked      *uuidSet // volumes about which the API server has answered whether such a PersistentVolume keeps them
	keptCheckRetries *backoff // after a failed request; it has a single ID, because the failure is not about a volume
	releaseRetries   *backoff
	healRetries      *backoff
	createRetries    *backoff // of PersistentVolumes whose createJob has failed
	undeleteRetries  *backoff
	stepRetries      *backoff
	usedReplicas     *backoff // PersistentVolumes of replicas that a pod was found to use before their eviction was confirmed
	chargeRetries    *backoff
	trimRetries      *backoff

	// The fields below belong to the goroutine of the rounds.
	cluster         string
	confirmAt       time.Time             // when the watches are next confirmed if nothing requires it before
	listAt          time.Time             // when the PersistentVolumes are listed at the latest; zero: the watch is enough
	countAt         time.Time             // when the cluster's PersistentVolumes are next counted
	volumeCount     int64                 // PersistentVolumes of the cluster
	orphans         map[eviction.Key]bool // as of the last confirmed round
	futureTimes     eviction.FutureTimes  // of volumes
	futureEvictable eviction.FutureTimes  // of PersistentVolumes
	starts          eviction.Starts
	answers         []flexlvmv1.VolumeAnswer // given by this process, the newest last
	diskLoad        *diskLoad
	undeleted       map[types.UID]string // messages about restored volumes whose claims are not bound yet, by PersistentVolume
	publishEvery    time.Duration
	roundTime       time.Duration // after which a round times out
	// unlabelled is since when this process has seen each replica's label gone from the node.
	unlabelled map[unlabelling]time.Time
}

// New returns a daemon that is started by Run.
func New(cfg Config, engine Engine, api *kube.Client, out Outlets) (*Daemon, error) {
	if err := cfg.Policy.Validate(); err != nil {
		return nil, err
	}
	if cfg.Node == "" {
		return nil, fmt.Errorf("configure node daemon: no node name is given; set --node-name or set NODE_NAME")
	}
	if cfg.Interval <= 0 {
		return nil, fmt.Errorf("configure node daemon: --interval is %s; give 1s or more", cfg.Interval)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Missing == nil {
		cfg.Missing = func() []string { return nil }
	}
	d := &Daemon{
		cfg: cfg, engine: engine, api: api, out: out,
		kicks:   make(chan struct{}, 1),
		wakeups: make(chan struct{}, 1),

		regrouped: make(chan struct{}, 1),

		blockedUnmounts: blockedUnmounts{due: make(chan struct{}, 1), pause: unmountPause},

		dedupe:          newDedupe(),
		history:         newHistory(cfg.Policy.OrphanWindow()),
		proven:          &uuidSet{},
		removed:         &uuidSet{},
		keptChecked:     &uuidSet{},
		failedEvictions: newFailedEvictions(),
		removalRetries:  newBackoff(5*time.Second, 5*time.Minute),
		releaseRetries:  newBackoff(time.Second, time.Minute),
		healRetries:     newBackoff(time.Minute, time.Hour),
		stepRetries:     newBackoff(time.Second, time.Minute),
		usedReplicas:    newBackoff(time.Minute, 5*time.Minute),
		chargeRetries:   newBackoff(time.Second, time.Minute),
		trimRetries:     newBackoff(time.Minute, time.Hour),

		undeleteRetries: newBackoff(time.Second, time.Minute),

		createRetries: newBackoff(5*time.Second, time.Minute),

		unanswered:       newBackoff(5*time.Second, 5*time.Minute),
		keptElsewhere:    newBackoff(time.Minute, 10*time.Minute),
		keptCheckRetries: newBackoff(5*time.Second, 5*time.Minute),

		publishEvery: wait.Jitter(flexlvmv1.ReportInterval, spread), roundTime: max(roundIntervals*cfg.Interval, minRoundTime),

		releasedClaims: newReleasedClaims(), diskLoad: newDiskLoad(cfg.IOTime),
	}
	d.events = newEvents(quietRecorder{out.Events, d.othersReport}, api, cfg.Node)
	if cfg.IO.Groups != nil && !cfg.DryRun {
		d.limiter = iolimit.New(cfg.IO, cfg.Now)
	}
	d.removals, d.wipes, d.directoryRemovals = newSerialQueue(d.remove), newSerialQueue(d.remove), newSerialQueue(d.remove)
	d.createQueue, d.slowCreateQueue, d.trimmer = newSerialQueue(d.runCreateJob), newSerialQueue(d.runCreateJob), newSerialQueue(d.trim)
	d.ahead = newAheadCreator(d)
	d.roundEnded()
	return d, nil
}

// kick wakes the loop of rounds. It never blocks.
func (d *Daemon) kick() { notify(d.kicks) }

// notify wakes the receiver of c, whose buffer holds one value. It never blocks.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// roundEnded stores the time with its monotonic reading, so that setting the clock does not affect Healthy.
func (d *Daemon) roundEnded() {
	now := d.cfg.Now()
	d.ended.Store(&now)
}

// hungTime returns how long after the end of a round the process counts as hung. It covers all that precedes the end of
// a next round that times out: the wait, with jitter, the pause, the round and its report. To restart a process whose
// rounds time out would not help, and would lose what only it knows, such as that the API server has gone back in time.
func (d *Daemon) hungTime() time.Duration {
	return 2*d.cfg.Interval + maxSettle + d.roundTime + publishTime + hungMargin
}

// Healthy returns an error if no round, successful or not, has ended for too long. A daemon that waits for
// another one is healthy.
func (d *Daemon) Healthy(*http.Request) error {
	if d.standby.Load() {
		return nil
	}
	since := d.cfg.Now().Sub(*d.ended.Load())
	if since > d.hungTime() {
		return fmt.Errorf("no round has ended for %s; a program of the host's may hang", since.Round(time.Second))
	}
	return nil
}

// Run waits for this daemon's turn, then works until ctx ends and all that it started has ended. It does not
// wait for a pass over the sizes of NFS directories, which may hang.
func (d *Daemon) Run(ctx context.Context) error {
	release, acquired, err := d.awaitLock(ctx)
	if err != nil || !acquired {
		return err
	}
	defer release()
	d.thaw(ctx) // first: pods, and the API server itself, may depend on frozen volumes
	if d.watches, err = newWatches(ctx, d.api, d.cfg.Node, d.kick, d.ahead.offer); err != nil {
		return fmt.Errorf("watch the API server: %w", err)
	}
	if d.declared, err = newDeclarations(ctx, d); err != nil {
		return fmt.Errorf("watch the API server: %w", err)
	}
	if d.discoverer, err = newDiscoverer(ctx, d); err != nil {
		return fmt.Errorf("watch the API server: %w", err)
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { d.watches.run(ctx) })
	all.Go(func() { d.discoverer.run(ctx) })
	all.Go(func() { d.declared.run(ctx) })
	all.Go(func() { d.removals.run(ctx) })
	all.Go(func() { d.wipes.run(ctx) })
	all.Go(func() { d.directoryRemovals.run(ctx) })
	all.Go(func() { d.createQueue.run(ctx) })
	all.Go(func() { d.slowCreateQueue.run(ctx) })
	all.Go(func() { d.ahead.run(ctx) })
	all.Go(func() { d.trimmer.run(ctx) })
	all.Go(func() { d.limiter.Run(ctx) })
	all.Go(func() { d.watchWakeups(ctx) })
	all.Go(func() { d.awaitUnmounts(ctx) })
	all.Go(func() { d.examine(ctx) })
	go d.enforceSizes(ctx) // not awaited: a pass over a hung file system does not end
	all.Go(func() { d.watchSnapshotStores(ctx) })
	d.awaitWatches(ctx)

	next, failures := time.Duration(0), 0
	for d.await(ctx, next) {
		start := time.Now()
		select {
		case <-d.wakeups: // this round is the one that the program waits for
		default:
		}
		f, err := d.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		d.roundEnded()
		if err != nil {
			next = wait.Jitter(min(firstRetry<<min(failures, 16), d.cfg.Interval), 1)
			failures++
		} else {
			next, failures = d.next(f), 0
		}
		d.rest(ctx, time.Since(start))
	}
	return nil
}

// watchWakeups triggers a round soon after a program on the node has woken the daemon.
func (d *Daemon) watchWakeups(ctx context.Context) {
	if d.cfg.WokenAt == nil {
		return
	}
	ticker := time.NewTicker(wakeupCheck)
	defer ticker.Stop()
	for last := d.cfg.WokenAt(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if now := d.cfg.WokenAt(); !now.Equal(last) { // not After: the clock may be set back
			last = now
			notify(d.wakeups)
			d.kick()
		}
	}
}

// await waits until a round is due. It returns false when ctx has ended.
func (d *Daemon) await(ctx context.Context, next time.Duration) bool {
	timer := time.NewTimer(next)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-d.kicks:
		d.rest(ctx, 0)
		select {
		case <-d.kicks:
		default:
		}
	}
	return ctx.Err() == nil
}

// rest waits for more changes, or as long as the last round took, to leave time to the machine. A wakeup cuts
// the wait down to settle, because a program waits, perhaps for room.
func (d *Daemon) rest(ctx context.Context, took time.Duration) {
	minPause, maxPause := time.NewTimer(settle), time.NewTimer(min(max(took, settle), maxSettle))
	defer minPause.Stop()
	defer maxPause.Stop()
	select {
	case <-ctx.Done():
	case <-minPause.C:
	}
	select {
	case <-ctx.Done():
	case <-maxPause.C:
	case <-d.wakeups:
	}
}

// awaitWatches waits for the watches to sync, for syncTime at most, so that the first round need not fail. It
// goes on without an API server.
func (d *Daemon) awaitWatches(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), d.watches.volumes.HasSynced, d.watches.pods.HasSynced, d.watches.storage.HasSynced) {
		klog.FromContext(ctx).V(1).Info("The API server has not shown the objects of this node yet")
	}
}
