// Package ledger accounts for what is promised on each node, so that no room is promised twice: written
// PersistentVolumes, and reservations for PersistentVolumes that will be written.
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
	// ReservationTime is how long room stays reserved for a PersistentVolume that this process or its
	// predecessor may have written, but that neither the API server's response nor the watch has shown yet. It
	// is written once, immediately after the reservation, and the client gives up after a minute. The API
	// server may store it later, but by default it gives up a request after a minute, too. Another attempt
	// reserves the room again.
	ReservationTime = 10 * time.Minute
	// OtherClaimTime is the same for another claim of the pod, which only waits for its turn: the
	// scheduler assigns the node to all claims of a pod within seconds.
	OtherClaimTime = time.Minute
	// holdTime is how long a node offers less than it has; see hold.
	holdTime = time.Minute
)

// A Ledger knows what every pool of the cluster can promise and what is promised there: from the nodes'
// reports, all PersistentVolumes, and the PersistentVolumes that are about to be written or not yet
// seen in the watch. Nothing is promised twice because every promise is first reserved here, under one
// lock, and only one process works at a time.
//
// Nodes are identified by their label value (pv.NodeLabelValue), as in their PersistentVolumes.
type Ledger struct {
	now     func() time.Time
	changed func(node string)

	mu         sync.Mutex
	accounts   map[string]*account
	where      map[string]string // label of the account that a PersistentVolume is charged to, by its name
	departures uint64            // number of departures so far
	// byClass are all nodes' offers to a class, by its Spec.
	byClass map[volume.Spec]*classOffers
}

// New returns an empty ledger. changed is called, without the lock, when a node's room may have
// changed.
func New(now func() time.Time, changed func(node string)) *Ledger {
	l := &Ledger{now: now, accounts: map[string]*account{}, where: map[string]string{}, byClass: map[volume.Spec]*classOffers{}}
	l.changed = func(node string) {
		l.touch(node)
		changed(node)
	}
	return l
}

// An account holds the state of one node.
type account struct {
	node     string    // its name; empty while it has no report
	lastName string    // the name in its last report, kept when the report is deleted
	report   types.UID // of the NodeStorage
	gone     types.UID // of the last one that was deleted
	// version is the version of the report; confirmed is that of the last report read from the API
	// server; and behind means that the watch has shown an older one since.
	version, confirmed uint64
	behind             bool
	observed           metav1.Time // when the node made the report, by its clock
	observedAt         time.Time   // when the ledger saw that first
	pools              map[volume.PoolName]pool
	// strays are volumes with a replica's name but without a PersistentVolume.
	strays   map[stray]bool
	written  map[string]entry
	reserved map[string]reservation
	departed []departure       // in order of departure
	growths  map[string]growth // by PersistentVolume, in addition to written
	holds    map[volume.PoolName]hold
}

// A stray is a volume by its group and name.
type stray struct {
	group volume.Group
	name  volume.Name
}

// straysOf returns the strays that a node reports; the report names at most 50
// orphans: those that are not seen at present, and else the oldest.
func straysOf(storage *flexlvmv1.NodeStorage) map[stray]bool {
	out := map[stray]bool{}
	for _, o := range storage.Status.Orphans {
		if replica.IsVolumeName(o.Name) {
			out[stray{volume.Group(o.Pool), volume.Name(o.Name)}] = true
		}
	}
	return out
}

// A pool is a node's report of a volume group, or of a thin or directory pool in one.
type pool struct {
	uuid        string // of the group
	size        volume.Bytes
	unused      volume.Bytes // not held by any logical volume, and LVM may allocate it
	promised    volume.Bytes // promised volumes that the node knows and has not created yet
	extent      volume.Bytes
	allocatable volume.Bytes
	reclaimable volume.Bytes   // part of allocatable
	removing    volume.Bytes   // part of allocatable: held by volumes that are being removed
	replicas    volume.Bytes   // part of reclaimable: held by replicas of datasets, and available only to claims
	devices     []volume.Bytes // free on each physical device
	reclaimOn   []volume.Bytes // reclaimable, or being removed, on each physical device
	closed      string
	busy        int // percent of time
}

// equal reports whether both pools allow the same promises.
func (p pool) equal(q pool) bool {
	return p.uuid == q.uuid && p.extent == q.extent && p.allocatable == q.allocatable && p.reclaimable == q.reclaimable && p.removing == q.removing && p.replicas == q.replicas &&
		slices.Equal(p.devices, q.devices) && slices.Equal(p.reclaimOn, q.reclaimOn) && p.closed == q.closed && p.busy == q.busy
}

// An entry is a written PersistentVolume. Its charge is interned, because there may be hundreds of
// thousands of entries, and many are equal.
type entry struct {
	of      unique.Handle[charge]
	version uint64 // of the object; 0 if unknown
}

// charge returns the entry's charge, which is zero for a zero entry.
func (e entry) charge() charge {
	if e == (entry{}) {
		return charge{}
	}
	return e.of.Value()
}

type reservation struct {
	charge
	until time.Time
	// writing: the PersistentVolume may be written at any moment. If false, the room is reserved for
	// another claim of the pod, which waits for its turn.
	writing bool
	// lack is how much of a growth that is taken back is not kept, because the pool does not hold it.
	lack volume.Bytes
}

// A hold keeps a pool from offering a volume larger than size until a point in time, or until the pool
// may have more room. The scheduler checks the claims of a pod one by one: if they do not fit together,
// it would choose the same node again unless the node rejects the largest of them.
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
	// Volumes are tied to their volume group, including those of a thin pool in it.
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
			size: volume.Bytes(p.Size.Value()), unused: unusedOf(p), promised: volume.Bytes(p.Promised.Value()),
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

// unusedOf returns the free room of a pool without that of devices that LVM may not allocate from, which are not in
// DeviceFree. A list of flexlvmv1.MaxPoolDevices may lack others, too.
func unusedOf(p flexlvmv1.Pool) volume.Bytes {
	unused := volume.Bytes(p.Free.Value())
	if n := len(p.DeviceFree); n == 0 || n >= flexlvmv1.MaxPoolDevices {
		return unused
	}
	var sum volume.Bytes
	for _, free := range p.DeviceFree {
		sum += volume.Bytes(free.Value())
	}
	return min(unused, sum)
}

// ExtentOf returns the allocation unit of a pool, given the reported one; 0 means not reported yet.
func ExtentOf(in volume.PoolName, reported volume.Bytes) volume.Bytes {
	if in.Directory() {
		return max(reported, volume.Block)
	}
	return max(reported, volume.DefaultExtent)
}

// ailingNode returns why no volume can be created on a node, or "".
func ailingNode(storage *flexlvmv1.NodeStorage) string {
	for _, c := range storage.Status.Conditions {
		bad := c.Reason == flexlvmv1.ReasonToolsMissing || c.Reason == flexlvmv1.ReasonLVMFailed
		if c.Type == flexlvmv1.ConditionReady && bad {
			return c.Message
		}
	}
	return ""
}

// Written records a PersistentVolume that exists in the API. Its charge replaces its reservation. An
// object that is older than the recorded one is ignored: a writer records its object immediately,
// before the watch shows it.
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
	l.drop(attemptOn(label, object.Name))
	a := l.account(label)
	a.written[object.Name] = entry{unique.Make(now), version}
	a.keepRest(object.Name, before.charge, now)
	a.endDeparturesNow()
	if growing && version != 0 && version <= grows.base {
		a.growths[object.Name] = grows // the promise may still be written
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

// versionOf returns the resourceVersion of an object, which increases within each kind; 0 if it has
// none.
func versionOf(object metav1.Object) uint64 {
	n, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Inherited reserves room for a PersistentVolume that existed when this process became the leader,
// until the watch shows it: a watch may start from an older state. If the watch has shown its end since it was
// read, nothing is reserved, because no later event would end the reservation.
func (l *Ledger) Inherited(object *corev1.PersistentVolume) {
	l.mu.Lock()
	defer l.mu.Unlock()
	label, c, charged := l.chargedWith(object)
	if !charged {
		return
	}
	if l.written(object.Name) {
		l.writtenLocked(object) // it may have grown since the version that the watch has shown
		return
	}
	if l.account(label).hasSeenGone(object) {
		return
	}
	l.drop(object.Name)
	l.reserveFor(label, object.Name, reservation{charge: c, until: l.now().Add(ReservationTime), writing: true})
}

// A place is the node and the charge of a PersistentVolume.
type place struct {
	label string
	charge
}

// drop removes a PersistentVolume, written or reserved, and returns the node that it was charged to
// and, if it was written, its charge.
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

// written reports whether a PersistentVolume is known to exist in the API.
func (l *Ledger) written(name string) bool {
	label, there := l.where[name]
	if !there {
		return false
	}
	_, written := l.accounts[label].written[name]
	return written
}

// settled reports whether a PersistentVolume has its room and its node: it is written, or may be
// written at any moment.
func (l *Ledger) settled(name string) bool {
	label, there := l.where[name]
	if !there {
		return false
	}
	r := l.accounts[label].reserved[name]
	return l.written(name) || r.writing && l.now().Before(r.until)
}

// entry returns the entry of a written PersistentVolume, or the zero entry.
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
