package node

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Default directories of a node.
const (
	DefaultStateDir = "/var/lib/flexlvm"
	DefaultLockDir  = "/run/lock/flexlvm"
	DefaultLogDir   = "/var/log/flexlvm"
)

// DefaultRoomTimeout is how long the drivers let a call wait for room that the node daemon frees. It
// suffices to evict an unreferenced volume, or a replica of a dataset, which takes about 15 s. If that takes
// longer, or no room can be freed, the pod's events should soon say so, with numbers.
const DefaultRoomTimeout = 30 * time.Second

// Config is the configuration of an engine. The zero value of each field is its default.
type Config struct {
	StateDir string
	LockDir  string
	Now      func() time.Time
	// Uptime returns the time since the machine's boot.
	Uptime func() time.Duration
	// WipeRate bounds how many bytes per second a removal wipes, and a full copy copies; 0 is unbounded.
	WipeRate volume.Bytes
	// ZeroRate bounds how many bytes per second of a raw block volume are zeroed before pods get them; 0 is
	// unbounded.
	ZeroRate volume.Bytes
	// Settle is called after a volume's first mount and arranges for Engine.Settle to be called soon, so that
	// kubelet does not wait for it. If Settle is nil, Mount settles the volume itself before handing it out,
	// as it always does for encrypted and raw block volumes.
	Settle func(volume.Group, volume.Name)
	// RoomTimeout is how long Mount and Expand wait for the node daemon, if one is running, to evict volumes
	// for the room that they need; 0 is not at all.
	RoomTimeout time.Duration
	// Log receives problems that do not fail a call and that an operator can fix.
	Log logrus.FieldLogger
	// After is called with the name of every step that has changed the machine, right after it. Tests kill
	// the process there.
	After func(step string)
}

// An Engine serves one node. It holds no state of its own, so any number of engines may run at the same time,
// in one process or in many.
type Engine struct {
	lvm     *lvm.Client
	host    command.Programs
	locks   lock.Dir
	records records
	// copyNotes record which copies of raid1 volumes are out of date.
	copyNotes copyNotes
	// invalidNotes record which copy-on-write snapshots were invalid.
	invalidNotes invalidNotes
	diskReads    *disk.Reads // of disks that are declared as part of groups
	now          func() time.Time
	uptime       func() time.Duration
	after        func(string)
	settle       func(volume.Group, volume.Name) // nil: Mount settles volumes itself
	log          logrus.FieldLogger

	wipeRate, zeroRate     volume.Bytes
	wipeProgressInterval   volume.Bytes
	stateDir, lockDir      string
	roomTimeout, roomRetry time.Duration
	maxFrozen              time.Duration
	sourceLockTimeout      time.Duration
	roundLockTimeout       time.Duration
	syncTimeout            time.Duration
	resumeWait             time.Duration
	// yields makes zero return errYielded after about holdTime instead of holding the lock until it is done. It is
	// only set by CreateAhead on its own copy of the engine.
	yields bool
}

// New returns an engine that runs the programs of host.
func New(cfg Config, host command.Programs) (*Engine, error) {
	if cfg.StateDir == "" {
		cfg.StateDir = DefaultStateDir
	}
	if cfg.LockDir == "" {
		cfg.LockDir = DefaultLockDir
	}
	for field, dir := range map[string]string{"StateDir": cfg.StateDir, "LockDir": cfg.LockDir} {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("configure engine: %s %q is not absolute", field, dir)
		}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Uptime == nil {
		cfg.Uptime = sinceBoot
	}
	if cfg.After == nil {
		cfg.After = func(string) {}
	}
	if cfg.Log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		cfg.Log = silent
	}
	for field, rate := range map[string]volume.Bytes{"WipeRate": cfg.WipeRate, "ZeroRate": cfg.ZeroRate} {
		if rate < 0 {
			return nil, fmt.Errorf("configure engine: %s %d is negative", field, int64(rate))
		}
	}
	locks := lock.Dir(cfg.LockDir)
	return &Engine{
		lvm:          lvm.New(host.Unkillable, locks),
		host:         host,
		locks:        locks,
		records:      records(filepath.Join(cfg.StateDir, "volumes")),
		copyNotes:    copyNotes(filepath.Join(cfg.StateDir, "copies")),
		invalidNotes: invalidNotes(filepath.Join(cfg.StateDir, "invalid-snapshots")),
		diskReads:    disk.NewReads(disk.ReadTime),
		now:          cfg.Now,
		uptime:       cfg.Uptime,
		after:        cfg.After,
		settle:       cfg.Settle,
		log:          cfg.Log,

		wipeRate: cfg.WipeRate, zeroRate: cfg.ZeroRate, wipeProgressInterval: wipeProgressInterval,
		stateDir: cfg.StateDir, lockDir: cfg.LockDir,
		roomTimeout: cfg.RoomTimeout, roomRetry: roomRetry,
		maxFrozen: maxFrozen, sourceLockTimeout: sourceLockTimeout, roundLockTimeout: roundLockTimeout, syncTimeout: syncTimeout,
		resumeWait: resumeWait,
	}, nil
}

// OnHost returns the engine of this host, with the default configuration.
func OnHost(log logrus.FieldLogger) (*Engine, error) {
	return New(Config{Log: log}, command.New("", log))
}

// lockVolume serialises all operations on one volume of this node.
func (e *Engine) lockVolume(ctx context.Context, g volume.Group, n volume.Name) (func(), error) {
	file, key := volumeLock(g, n)
	return e.locks.Acquire(ctx, file, key)
}

// holdTime is how long a long operation, such as a full copy, holds a volume's lock before it yields: less
// than roundLockTimeout, and long enough for the pauses to cost little.
const holdTime = 3 * time.Second

// lockWithin is lockVolume for calls that wait for at most timeout.
func (e *Engine) lockWithin(ctx context.Context, timeout time.Duration, g volume.Group, n volume.Name) (func(), error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return e.lockVolume(ctx, g, n)
}

func volumeLock(g volume.Group, n volume.Name) (file, key string) {
	return "volumes.lock", "volume " + string(g) + "/" + string(n)
}

// AcquireDaemonLock acquires the lock of this node's only node daemon, until release or the end of the process;
// acquired is false while another daemon holds it.
func AcquireDaemonLock() (release func(), acquired bool, err error) {
	return lock.Dir(DefaultLockDir).Try(daemonLock())
}

// DaemonRunning reports whether a node daemon is running on this node.
func DaemonRunning() (bool, error) { return lock.Dir(DefaultLockDir).Held(daemonLock()) }

func daemonLock() (file, key string) { return "daemon.lock", "node daemon" }
