// Package ledger adds up what is promised on which node, so that nothing is promised
// twice: PersistentVolumes that are written, and reservations for those that will be.
package ledger

import (
	"slices"
	"strconv"
	"sync"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// ReservationTime is how long room is kept for a PersistentVolume that may have
	// been written, by this process or by its predecessor, and has not been seen. The
	// provisioner tries to write it up to five times, and the API server may take a minute
	// for each of them.
	ReservationTime = 10 * time.Minute
	// CompanionTime is the same for one that only waits for its turn: the scheduler
	// assigns the node to all claims of a pod within seconds.
	CompanionTime = time.Minute
	// holdTime is how long a node offers less than it has, see hold.
	holdTime = time.Minute
)

// A Ledger knows what every pool of the cluster can promise and what is promised there:
// from the reports of the nodes, all PersistentVolumes, and those that are about to be
// written and not yet seen in the watch. Nothing is promised twice because every promise
// is reserved here first, under one lock, and one process works at a time.
//
// Nodes are identified by the value of their label (pv.NodeLabelValue), as in their
// PersistentVolumes.
type Ledger struct {
	now     func() time.Time
	changed func(node string)

	mu         sync.Mutex
	accounts   map[string]*account
	where      map[string]string // label of the account that carries a PersistentVolume, by its name
	departures uint64            // how many there have been
	// standings are what all nodes offer to a class, by its Spec.
	standings map[volume.Spec]*standing
}

// New returns an empty ledger. changed is called, without the lock, when the room of a
// node may have changed.
func New(now func() time.Time, changed func(node string)) *Ledger {
	l := &Ledger{now: now, accounts: map[string]*account{}, where: map[string]string{}, standings: map[volume.Spec]*standing{}}
	l.changed = func(node string) {
		l.touch(node)
		changed(node)
	}
	return l
}

// An account is one node.
type account struct {
	node   string    // its name; empty without a report
	called string    // its name, once there was a report
	report types.UID // of the NodeStorage
	gone   types.UID // of the last one that was deleted
	// version is that of the report; confirmed is that of the last one that the API server itself gave, and
	// behind: the watch has shown an older one since.
	version, confirmed uint64
	behind             bool
	pools              map[volume.PoolName]pool
	// strays are volumes with names of replicas without a PersistentVolume.
	strays   map[stray]bool
	written  map[string]entry
	reserved map[string]reservation
	departed []departure       // in the order of departing
	growths  map[string]growth // by PersistentVolume, on top of what is written
	holds    map[volume.PoolName]hold
}

// A stray is a volume by its group and name.
type stray struct {
	group volume.Group
	name  volume.Name
}

// straysOf are those that a node reports; it names the oldest of its orphans only.
func straysOf(storage *flexlvmv1.NodeStorage) map[stray]bool {
	out := map[stray]bool{}
	for _, o := range storage.Status.Orphans {
		if replica.IsVolumeName(o.Name) {
			out[stray{volume.Group(o.Pool), volume.Name(o.Name)}] = true
		}
	}
	return out
}

// A pool is what a node reports of a volume group, or of a thin pool in one.
type pool struct {
	uuid        string // of the group
	size        volume.Bytes
	unused      volume.Bytes // what no logical volume holds
	promised    volume.Bytes // what the node knows to be promised and not made yet
	extent      volume.Bytes
	allocatable volume.Bytes
	reclaimable volume.Bytes   // of it
	removing    volume.Bytes   // of allocatable: held by what is being removed
	replicas    volume.Bytes   // of reclaimable: what replicas of datasets hold, for claims alone
	devices     []volume.Bytes // free on each physical device
	reclaimOn   []volume.Bytes // reclaimable, or being removed, on each of devices
	closed      string
	busy        int // percent of time
}

// equal reports whether as much can be promised in two pools.
func (p pool) equal(q pool) bool {
	return p.uuid == q.uuid && p.extent == q.extent && p.allocatable == q.allocatable && p.reclaimable == q.reclaimable && p.removing == q.removing && p.replicas == q.replicas &&
		slices.Equal(p.devices, q.devices) && slices.Equal(p.reclaimOn, q.reclaimOn) && p.closed == q.closed && p.busy == q.busy
}

// An entry is a PersistentVolume that was written. Its charge is kept once for all that have
// the same: there may be hundreds of thousands.
type entry struct {
	of      unique.Handle[charge]
	version uint64 // of the object; 0 where that is not known
}

// charge is what it takes; nothing where there is no such entry.
func (e entry) charge() charge {
	if e == (entry{}) {
		return charge{}
	}
	return e.of.Value()
}

type reservation struct {
	charge
	until time.Time
	// writing: the PersistentVolume may be written at any moment. If not, this is room for a
	// companion that waits for its turn.
	writing bool
}

// A hold keeps a pool from offering a volume larger than size until a point in time, or until the pool
// may have more room. The scheduler checks the claims of a pod one by one: if they do not fit together,
// it would choose the same node again unless the largest of them is kept away.
type hold struct {
	size  volume.Bytes
	until time.Time
}

func (l *Ledger) account(label string) *account {
	a, there := l.accounts[label]
	if !there {
		a = &account{written: map[string]entry{}, reserved: map[string]reservation{}, growths: map[string]growth{}, holds: map[volume.PoolName]hold{}}
		l.accounts[label] = a
	}
	return a
}

func poolsOf(storage *flexlvmv1.NodeStorage) map[volume.PoolName]pool {
	out := make(map[volume.PoolName]pool, len(storage.Status.Pools))
	ailing := ailingNode(storage)
	// Volumes are tied to their group, also those of a thin pool in it.
	uuids := make(map[volume.Group]string, len(storage.Status.Pools))
	for _, p := range storage.Status.Pools {
		uuids[volume.Group(p.Name)] = p.UUID
	}
	for _, p := range storage.Status.Pools {
		in, err := volume.ParsePool("name", p.Name)
		if err != nil {
			continue // a pool of a kind that this release does not know
		}
		one := pool{
			uuid: uuids[in.Group()], closed: p.Closed, busy: int(p.BusyPercent),
			size: volume.Bytes(p.Size.Value()), unused: volume.Bytes(p.Free.Value()), promised: volume.Bytes(p.Promised.Value()),
			extent:      ExtentOf(in, volume.Bytes(p.ExtentSize.Value())),
			allocatable: volume.Bytes(p.Allocatable.Value()),
			reclaimable: volume.Bytes(p.Reclaimable.Value()),
			removing:    volume.Bytes(p.Removing.Value()),
			replicas:    volume.Bytes(p.ReclaimableReplicas.Value()),
		}
		for _, free := range p.DeviceFree {
			one.devices = append(one.devices, volume.Bytes(free.Value()))
		}
		one.reclaimOn = make([]volume.Bytes, len(one.devices)) // a report without them has none
		for i := range min(len(p.DeviceReclaimable), len(one.devices)) {
			one.reclaimOn[i] = volume.Bytes(p.DeviceReclaimable[i].Value())
		}
		if one.closed == "" {
			one.closed = ailing
		}
		out[in] = one
	}
	return out
}

// ExtentOf returns the unit in which a pool allocates room, which its node has reported; 0: not yet.
func ExtentOf(in volume.PoolName, reported volume.Bytes) volume.Bytes {
	if in.Directory() {
		return max(reported, volume.Block)
	}
	return max(reported, volume.DefaultExtent)
}

// ailingNode says why no volume can be made on a node, or nothing.
func ailingNode(storage *flexlvmv1.NodeStorage) string {
	for _, c := range storage.Status.Conditions {
		bad := c.Reason == flexlvmv1.ReasonToolsMissing || c.Reason == flexlvmv1.ReasonLVMFailed
		if c.Type == flexlvmv1.ConditionReady && bad {
			return c.Message
		}
	}
	return ""
}

// Written records a PersistentVolume that is in the API. Its charge replaces what was
// reserved for it. An object that is older than the one before says
// nothing: who wrote a PersistentVolume records it at once, and the watch comes after.
func (l *Ledger) Written(object *corev1.PersistentVolume) {
	if !persistentvolume.IsOurs(object) {
		return
	}
	l.mu.Lock()
	touched := l.writtenLocked(object)
	l.mu.Unlock()
	for _, label := range touched {
		l.changed(label)
	}
}

func (l *Ledger) writtenLocked(object *corev1.PersistentVolume) (touched []string) {
	version := versionOf(object)
	if known := l.entry(object.Name); version != 0 && version < known.version {
		return nil
	}
	label, now, charged := l.chargedWith(object)
	if !charged {
		return l.goneLocked(object.Name)
	}
	grows, growing := l.growth(object.Name)
	before := l.drop(object.Name)
	a := l.account(label)
	a.written[object.Name] = entry{unique.Make(now), version}
	a.keepRest(object.Name, before.charge, now)
	if growing && version != 0 && version <= grows.base {
		a.growths[object.Name] = grows // it may be written yet
	}
	l.where[object.Name] = label
	if before == (place{label, now}) && !growing {
		return nil
	}
	if before.label != "" && before.label != label {
		touched = append(touched, before.label)
	}
	return append(touched, label)
}

// versionOf is the version of an object, which Kubernetes counts up in each kind; 0 where
// it has none.
func versionOf(object metav1.Object) uint64 {
	n, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Inherited reserves room for a PersistentVolume that was in the API when this process
// began to work, until the watch shows it: a watch may begin with an older state.
func (l *Ledger) Inherited(object *corev1.PersistentVolume) {
	l.mu.Lock()
	defer l.mu.Unlock()
	label, c, charged := l.chargedWith(object)
	if !charged {
		return
	}
	if l.written(object.Name) {
		l.writtenLocked(object) // it may have grown since what the watch shows
		return
	}
	l.drop(object.Name)
	l.reserveFor(label, object.Name, reservation{charge: c, until: l.now().Add(ReservationTime), writing: true})
}

// A place is where a PersistentVolume is charged, and with what.
type place struct {
	label string
	charge
}

// drop takes a PersistentVolume out of the books, written or reserved, and tells
// where it was and, where it was written, with what.
func (l *Ledger) drop(name string) (was place) {
	label, there := l.where[name]
	if !there {
		return place{}
	}
	a := l.accounts[label]
	was = place{label, a.written[name].charge()}
	delete(a.written, name)
	delete(a.reserved, name)
	delete(a.growths, name)
	delete(l.where, name)
	return was
}

// written reports whether a PersistentVolume is in the API, as far as is known.
func (l *Ledger) written(name string) bool {
	label, there := l.where[name]
	if !there {
		return false
	}
	_, written := l.accounts[label].written[name]
	return written
}

// settled reports whether a PersistentVolume has its room and its node: it is written, or may be at any
// moment.
func (l *Ledger) settled(name string) bool {
	label, there := l.where[name]
	if !there {
		return false
	}
	r := l.accounts[label].reserved[name]
	return l.written(name) || r.writing && l.now().Before(r.until)
}

// entry is what is known of a PersistentVolume that is written; zero for others.
func (l *Ledger) entry(name string) entry {
	if label, there := l.where[name]; there {
		return l.accounts[label].written[name]
	}
	return entry{}
}

func (l *Ledger) reserveFor(label, name string, r reservation) {
	l.account(label).reserved[name] = r
	l.where[name] = label
}

// Nodes returns the sorted names of the nodes that have reported.
func (l *Ledger) Nodes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, a := range l.accounts {
		if a.node != "" {
			out = append(out, a.node)
		}
	}
	slices.Sort(out)
	return out
}
