package nodeagent

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/iolimit"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// settle is how long a round waits for more changes after the first: they come
	// in swarms.
	settle = 200 * time.Millisecond
	// mostSettle bounds what a slow machine waits: as long as its rounds take.
	mostSettle = 5 * time.Second
	// callCheck is how often to see whether somebody has called.
	callCheck = 200 * time.Millisecond
	// firstRetry is when a round that failed is made again; doubled up to the
	// interval.
	firstRetry = time.Second
	// A round may take roundIntervals, and the process counts as hung when none has
	// ended for hungIntervals; with short intervals at least so long.
	roundIntervals, leastRound = 4, 4 * time.Minute
	hungIntervals, leastHung   = 5, 5 * time.Minute
	// syncTime is how long the first round waits for the watches.
	syncTime = 5 * time.Second
)

// Config configures a Daemon.
type Config struct {
	Node     string // name of the Node that it runs on
	Policy   eviction.Policy
	Interval time.Duration // between rounds that nothing has called for; somewhat longer at random
	// ListUpTo: while the cluster has at most this many PersistentVolumes, of any driver,
	// decisions are confirmed by listing the node's. 0 disables this.
	ListUpTo int
	DryRun   bool // say what would be done and do nothing
	Now      func() time.Time
	// Turn takes the node for this daemon until release; taken is false while another
	// daemon has it. nil: there is no other.
	Turn func() (release func(), taken bool, err error)
	// Taken reports whether another daemon has the node: a dry run beside it leaves the NodeStorage
	// alone. nil: there is no other.
	Taken func() (bool, error)
	// Called returns when somebody on the node last asked for a round; nil: nobody can.
	Called func() time.Time
	// Mounts calls changed after each change of the host's mounts, until ctx ends; nil: they
	// are not watched.
	Mounts func(ctx context.Context, changed func()) error
	// Missing returns the programs that the host lacks.
	Missing func() []string
	IO      iolimit.Host // limits on it; a dry run sets none
	Trim    Trimming     // a dry run trims nothing
	// Groups makes the volume groups that are declared; nil: none are. A dry run makes none.
	Groups GroupMaker
	// Disks finds and cleans the file systems and disks that are volumes as they are, and
	// DiscoveredFile is where to write down who had them; nil: none are discovered. A dry run
	// discovers none.
	Disks          Disks
	DiscoveredFile string
	// Sizes holds the directories of NFS exports on this node to their sizes; nil: there are none. A
	// dry run holds none.
	Sizes SizeKeeper
	// Examine runs the checks of `flexlvm doctor` on the node and its groups, those that have
	// failed first; nil: the node is not examined.
	Examine func(ctx context.Context, groups []volume.Group) []flexlvmv1.Check
	// Fills returns how full the stores of all copy-on-write snapshots of the node are, in per
	// cent, by any names, and takes no lock; nil: it is seen in rounds only.
	Fills func(ctx context.Context) (map[string]int, error)
	// IOTime returns how long a disk has been busy; nil: it is not measured.
	IOTime func(device string) (time.Duration, error)
}

// Outlets is where a daemon reports what it does.
type Outlets struct {
	Events  Recorder
	Metrics *Metrics
	Ready   func() // called when a round has succeeded for the first time
}

// A Daemon manages the volumes of one node. It remembers nothing that it could not find
// out again.
type Daemon struct {
	cfg     Config
	engine  Engine
	api     *kube.Client
	out     Outlets
	events  events
	watches *watches

	quick, slow, files *serialQueue[[]job] // jobs that go together

	copier      *serialQueue[copyJob]
	filler      *serialQueue[copyJob] // full copies, which take long
	trimmer     *serialQueue[inventory.Volume]
	maker       *maker           // nil in a dry run
	limiter     *iolimit.Limiter // nil where nothing is limited
	declared    *declarations    // nil where no group is made
	discoverer  *discoverer      // nil where nothing is discovered
	kicks       chan struct{}
	calls       chan struct{}             // somebody on the node has called, and waits
	regrouped   chan struct{}             // the node has other volume groups than those that were examined
	waits       atomic.Bool               // for another daemon of this node to end
	ended       atomic.Pointer[time.Time] // when a round last ended
	examined    atomic.Pointer[examination]
	mayOverflow atomic.Bool // a snapshot may, as of the last round

	blockedUnmounts blockedUnmounts

	// What follows belongs to the goroutine of the rounds.
	cluster     string
	confirmAt   time.Time             // when the watches are to be confirmed if nothing calls for it before
	listAt      time.Time             // when to list the PersistentVolumes at the latest; zero: a watch does
	countAt     time.Time             // when to count the PersistentVolumes again
	volumeCount int64                 // of the cluster
	orphans     map[eviction.Key]bool // of the last confirmed round
	futureTimes eviction.FutureTimes  // of volumes
	futureGoing eviction.FutureTimes  // of PersistentVolumes
	starts      eviction.Starts
	answers     []flexlvmv1.VolumeAnswer // of this process, the newest last
	meter       *meter

	dedupe         *dedupe
	history        *history
	releasedClaims *releasedClaims
	proven         *uuidSet // groups in which the last removal has succeeded
	removed        *uuidSet // removed by this process, and perhaps in an older inventory
	inFlight       *inFlight
	removals       *backoff
	unanswered     *backoff // volumes of which the API server has not said whether they may be removed
	elsewhere      *backoff // volumes that PersistentVolumes keep which are in no list of this node
	releases       *backoff
	heals          *backoff
	copies         *backoff
	undeletes      *backoff
	moves          *backoff
	charges        *backoff
	trims          *backoff
	publishEvery   time.Duration
	// unlabelled is since when this process has seen that a replica's label is gone.
	unlabelled map[unlabelling]time.Time
}

// New returns a daemon, which does nothing before Run.
func New(cfg Config, engine Engine, api *kube.Client, out Outlets) (*Daemon, error) {
	if err := cfg.Policy.Validate(); err != nil {
		return nil, err
	}
	if cfg.Node == "" {
		return nil, fmt.Errorf("configure node daemon: no node is named; give --node-name or set NODE_NAME")
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
		kicks: make(chan struct{}, 1),
		calls: make(chan struct{}, 1),

		regrouped: make(chan struct{}, 1),

		dedupe:   newDedupe(),
		history:  newHistory(cfg.Policy.OrphanWindow()),
		proven:   &uuidSet{},
		removed:  &uuidSet{},
		inFlight: newInFlight(),
		removals: newBackoff(5*time.Second, 5*time.Minute),
		releases: newBackoff(time.Second, time.Minute),
		heals:    newBackoff(time.Minute, time.Hour),
		copies:   newBackoff(5*time.Second, time.Minute),
		moves:    newBackoff(time.Second, time.Minute),
		charges:  newBackoff(time.Second, time.Minute),
		trims:    newBackoff(time.Minute, time.Hour),

		undeletes: newBackoff(time.Second, time.Minute),

		unanswered: newBackoff(5*time.Second, 5*time.Minute),
		elsewhere:  newBackoff(time.Minute, 10*time.Minute),

		publishEvery: wait.Jitter(publishEvery, spread), releasedClaims: newReleasedClaims(), meter: newMeter(cfg.IOTime),
	}
	d.events = newEvents(quietRecorder{out.Events, d.othersReport}, api, cfg.Node)
	if cfg.IO.Groups != nil && !cfg.DryRun {
		d.limiter = iolimit.New(cfg.IO, cfg.Now)
	}
	d.quick, d.slow, d.files = newSerialQueue(d.remove), newSerialQueue(d.remove), newSerialQueue(d.remove)
	d.copier, d.filler, d.trimmer = newSerialQueue(d.makeCopy), newSerialQueue(d.makeCopy), newSerialQueue(d.trim)
	d.maker = newMaker(d)
	d.roundEnded()
	return d, nil
}

// kick calls for a round soon. It never blocks.
func (d *Daemon) kick() { notify(d.kicks) }

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// roundEnded notes the time as it is read, so that a clock that is set changes nothing.
func (d *Daemon) roundEnded() {
	now := d.cfg.Now()
	d.ended.Store(&now)
}

// Healthy fails if no round, successful or not, has ended for too long.
// Waiting for another daemon is healthy.
func (d *Daemon) Healthy(*http.Request) error {
	if d.waits.Load() {
		return nil
	}
	since := d.cfg.Now().Sub(*d.ended.Load())
	if since > max(hungIntervals*d.cfg.Interval, leastHung) {
		return fmt.Errorf("no round has ended for %s; a program of the host's may hang", since.Round(time.Second))
	}
	return nil
}

// Run works until ctx ends, and returns when all that it had begun has ended, but for a look at the
// sizes of directories on NFS, which may hang.
// It begins when it is this daemon's turn.
func (d *Daemon) Run(ctx context.Context) error {
	release, ours, err := d.awaitTurn(ctx)
	if err != nil || !ours {
		return err
	}
	defer release()
	d.thaw(ctx) // first: pods may wait for it, and what the API server needs
	if d.watches, err = newWatches(ctx, d.api, d.cfg.Node, d.kick, d.maker.offer); err != nil {
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
	all.Go(func() { d.quick.run(ctx) })
	all.Go(func() { d.slow.run(ctx) })
	all.Go(func() { d.files.run(ctx) })
	all.Go(func() { d.copier.run(ctx) })
	all.Go(func() { d.filler.run(ctx) })
	all.Go(func() { d.maker.run(ctx) })
	all.Go(func() { d.trimmer.run(ctx) })
	all.Go(func() { d.limiter.Run(ctx) })
	all.Go(func() { d.answer(ctx) })
	all.Go(func() { d.awaitUnmounts(ctx) })
	all.Go(func() { d.examine(ctx) })
	go d.holdSizes(ctx) // not awaited: a look at a file system that hangs does not end
	all.Go(func() { d.watchStores(ctx) })
	d.awaitWatches(ctx)

	next, failures := time.Duration(0), 0
	for d.await(ctx, next) {
		start := time.Now()
		select {
		case <-d.calls: // this round answers it
		default:
		}
		f, err := d.boundedRound(ctx)
		if ctx.Err() != nil {
			return nil
		}
		d.roundEnded()
		if err != nil {
			next = wait.Jitter(min(firstRetry<<min(failures, 16), d.cfg.Interval), 1)
			failures++
		} else {
			next, failures = d.next(f), 0
			if d.out.Ready != nil {
				d.out.Ready()
			}
		}
		d.rest(ctx, time.Since(start))
	}
	return nil
}

// boundedRound is a round that ends even if what it waits for does not.
func (d *Daemon) boundedRound(ctx context.Context) (observation, error) {
	ctx, cancel := context.WithTimeout(ctx, max(roundIntervals*d.cfg.Interval, leastRound))
	defer cancel()
	return d.round(ctx)
}

// answer makes a round soon after somebody on the node has called for one.
func (d *Daemon) answer(ctx context.Context) {
	if d.cfg.Called == nil {
		return
	}
	ticker := time.NewTicker(callCheck)
	defer ticker.Stop()
	for last := d.cfg.Called(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if now := d.cfg.Called(); !now.Equal(last) { // clocks are set back, too
			last = now
			notify(d.calls)
			d.kick()
		}
	}
}

// await waits until a round is due, and returns false when ctx has ended.
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

// rest waits for more changes, or gives the machine as much time as a round took, unless
// somebody has called, who waits, perhaps for room.
func (d *Daemon) rest(ctx context.Context, took time.Duration) {
	least, most := time.NewTimer(settle), time.NewTimer(min(max(took, settle), mostSettle))
	defer least.Stop()
	defer most.Stop()
	select {
	case <-ctx.Done():
	case <-least.C:
	}
	select {
	case <-ctx.Done():
	case <-most.C:
	case <-d.calls:
	}
}

// awaitWatches gives the watches a moment to fill, so that the first round need
// not fail. Without an API server it goes on.
func (d *Daemon) awaitWatches(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	for _, synced := range []func() bool{d.watches.volumes.HasSynced, d.watches.pods.HasSynced, d.watches.storage.HasSynced} {
		for !synced() {
			timer := time.NewTimer(20 * time.Millisecond)
			select {
			case <-ctx.Done():
				timer.Stop()
				klog.FromContext(ctx).V(1).Info("The API server has not shown the objects of this node yet")
				return
			case <-timer.C:
			}
		}
	}
}
