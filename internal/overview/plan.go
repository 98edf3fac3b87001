package overview

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Eviction is a planned eviction.
type Eviction struct {
	Node      string          `json:"node"`
	Pool      string          `json:"pool"`
	Name      string          `json:"name"`
	Namespace string          `json:"namespace,omitempty"`
	Room      volume.Bytes    `json:"room"`
	LastUsed  metav1.Time     `json:"lastUsed,omitzero"`
	Reason    eviction.Reason `json:"reason,omitempty"` // empty if the volume is only evicted when room is needed
	Message   string          `json:"message"`
}

// A Fit is how a claim would fit on a node.
type Fit struct {
	Node string `json:"node"`
	Fits bool   `json:"fits"`
	// Why the claim does not fit.
	Why string `json:"why,omitempty"`
	// After is when recently released volumes become old enough to be evicted, if the claim has to wait for
	// that.
	After metav1.Time `json:"after,omitzero"`
	// Evictions make room for the claim, in this order.
	Evictions []Eviction `json:"evictions,omitempty"`
	// Replicas is how much replicas of datasets have to give in addition.
	Replicas volume.Bytes `json:"replicas,omitempty"`
	// Then are the evictions that follow once the volume exists, because it fills the pool.
	Then []Eviction `json:"then,omitempty"`
	// Unlisted is the number of released volumes that the node does not list and the prediction may therefore
	// lack.
	Unlisted int32 `json:"unlisted,omitempty"`
}

// wanted is the name of the hypothetical claim's PersistentVolume. No real object can have it.
const wanted = "what-if/claim"

// FitsOf predicts for every node whether a claim of this Spec fits, with the provisioner's rules, and which
// volumes would be evicted for it, with the node daemon's rules. Nodes where it fits come first, those that
// evict least before the others.
func FitsOf(o Objects, spec volume.Spec, now time.Time) []Fit {
	books := ledger.New(func() time.Time { return now }, func(string) {})
	for i := range o.Storages {
		books.Report(&o.Storages[i])
	}
	for i := range o.Volumes {
		books.Written(&o.Volumes[i])
	}
	out := []Fit{}
	for i := range o.Storages {
		s := &o.Storages[i]
		one := Fit{Node: s.Name}
		want := []ledger.Want{{PV: wanted, Claim: "claim", Spec: spec}}
		_, err := books.Reserve(s.Name, want)
		var noRoom *ledger.NoRoomError
		if later, changes := afterMinAge(s, now); changes && errors.As(err, &noRoom) {
			books.Report(later)
			if _, laterErr := books.Reserve(s.Name, want); laterErr == nil {
				err = nil
			}
		}
		switch {
		case errors.As(err, &noRoom):
			one.Why = noRoom.Why
		case err != nil:
			one.Why = err.Error()
		default:
			one.Fits = true
			one.foresee(s, spec, now)
		}
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(a, b Fit) int {
		return cmp.Or(cmp.Compare(worth(b), worth(a)), cmp.Compare(a.gives(), b.gives()), cmp.Compare(a.Node, b.Node))
	})
	return out
}

func worth(f Fit) int {
	if f.Fits {
		return 1
	}
	return 0
}

func (f *Fit) gives() (sum volume.Bytes) {
	for _, e := range slices.Concat(f.Evictions, f.Then) {
		sum += e.Room
	}
	return sum + f.Replicas
}

// foresee predicts what a node evicts from the claim's pool for a claim that fits.
func (f *Fit) foresee(s *flexlvmv1.NodeStorage, spec volume.Spec, now time.Time) {
	view, policy := viewOf(s, now)
	claim := persistentvolume.Volume{
		PV: wanted, Group: spec.Group, Volume: wanted, Cluster: here, Kind: spec.Kind, Size: spec.Size, Inodes: spec.Inodes, FSType: spec.FSType, Encrypted: spec.Encrypted,
		Shape: spec.Shape(), Charged: spec.Charge(), Phase: corev1.VolumeBound, HasFinalizer: true,
	}
	i := slices.IndexFunc(view.Pools, func(p poolView) bool { return p.Name == spec.Pool() })
	need := claim.Charge().In(view.Pools[i].Extent)
	view.PersistentVolumes = append(view.PersistentVolumes, claim)
	view.StartsUntil = now.Add(eviction.MaxPostponement) // the claim's pod starts now
	plan, freed := planFor(view, policy, spec.Pool())
	if view.Pools[i].Thin == nil {
		missing := need + bytesOf(s.Status.Pools[i].Promised) - view.Pools[i].Free
		for _, at := range evictableTimes(view, policy) {
			if freed >= missing {
				break
			}
			later := view
			later.Now = at
			if p, n := planFor(later, policy, spec.Pool()); n >= missing {
				f.After, view, plan, freed = metav1.NewTime(at), later, p, n
			}
		}
	}
	gone := map[volume.Name]bool{}
	for _, e := range plan {
		f.Evictions = append(f.Evictions, evictionOf(s.Name, e))
		gone[e.Volume.Name] = true
	}
	f.Unlisted = max(0, s.Status.ReleasedCount-int32(len(s.Status.Released)))
	if why := blockedOf(s); why != "" && len(f.Evictions) > 0 {
		*f = Fit{Node: f.Node, Why: "would have to evict volumes, but evictions are blocked: " + why}
		return
	}
	free := view.Pools[i].Free + freed
	if view.Pools[i].Thin == nil {
		if short := need + bytesOf(s.Status.Pools[i].Promised) - free; short > 0 {
			f.Replicas = min(short, bytesOf(s.Status.Pools[i].ReclaimableReplicas))
		}
		view.Pools[i].Free = max(0, free-need)
	}
	view.PersistentVolumes = view.PersistentVolumes[:len(view.PersistentVolumes)-1]
	view.Volumes = slices.DeleteFunc(view.Volumes, func(v volumeView) bool { return v.Pool() == spec.Pool() && gone[v.Name] })
	view.Volumes = append(view.Volumes, inUse(wanted, &view.Pools[i], need, view.Now))
	view.StartsUntil = time.Time{}
	if ages := evictableTimes(view, policy); len(ages) > 0 {
		view.Now = ages[len(ages)-1] // if the pool is too full, all of them are waited for
	}
	then, _ := planFor(view, policy, spec.Pool())
	for _, e := range then {
		f.Then = append(f.Then, evictionOf(s.Name, e))
	}
}

// afterMinAge returns the report that a node will publish once its recently released volumes may be evicted; until
// then they do not count as reclaimable. changes is false if there are none.
func afterMinAge(s *flexlvmv1.NodeStorage, now time.Time) (later *flexlvmv1.NodeStorage, changes bool) {
	view, policy := viewOf(s, now)
	ages := evictableTimes(view, policy)
	if len(ages) == 0 {
		return nil, false
	}
	before := reclaimable(view, policy)
	view.Now = ages[len(ages)-1]
	after := reclaimable(view, policy)
	later = s.DeepCopy()
	for i := range later.Status.Pools {
		p := &later.Status.Pools[i]
		more := resource.NewQuantity(int64(after[volume.PoolName(p.Name)]-before[volume.PoolName(p.Name)]), resource.BinarySI)
		p.Reclaimable.Add(*more)
		p.Allocatable.Add(*more)
	}
	return later, true
}

// reclaimable returns how much may be evicted in each pool, including what is evicted immediately.
func reclaimable(view eviction.View, policy eviction.Policy) map[volume.PoolName]volume.Bytes {
	out := map[volume.PoolName]volume.Bytes{}
	for _, p := range eviction.Plan(view, policy).Pools {
		out[p.Pool.Name] = p.Reclaimable
	}
	return out
}

// planFor returns what a node would evict from a pool, and how much room that frees. Evictions from the node's
// other pools do not help a claim in this one.
func planFor(view eviction.View, policy eviction.Policy, pool volume.PoolName) (plan []eviction.Eviction, freed volume.Bytes) {
	for _, e := range eviction.Plan(view, policy).Evictions {
		if e.Volume.Pool() == pool {
			plan = append(plan, e)
			freed += e.Volume.Allocated
		}
	}
	return plan, freed
}

// evictableTimes returns when each recently released volume becomes old enough to be evicted (Policy.MinAge),
// earliest first.
func evictableTimes(view eviction.View, policy eviction.Policy) (out []time.Time) {
	for i := range view.Volumes {
		if at := view.Volumes[i].Released.Add(policy.MinAge); at.After(view.Now) {
			out = append(out, at)
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return out
}

// NextOf returns what each node would evict now, and which volumes, up to most of each pool, would be evicted
// next when room is needed. Those that are evicted now come first. A pool whose removals fail evicts none for their room.
func NextOf(storages []flexlvmv1.NodeStorage, most int, now time.Time) []Eviction {
	out := []Eviction{}
	for i := range storages {
		s := &storages[i]
		view, policy := viewOf(s, now)
		var plan eviction.Result
		if blockedOf(s) == "" {
			plan = eviction.Plan(view, policy)
		}
		told := map[string]int{}
		gone := map[eviction.Key]bool{}
		for _, e := range plan.Evictions {
			out = append(out, evictionOf(s.Name, e))
			told[string(e.Volume.Pool())]++
			gone[eviction.KeyOf(&e.Volume)] = true
		}
		queue := slices.Clone(s.Status.Released)
		slices.SortStableFunc(queue, func(a, b flexlvmv1.ReleasedVolume) int { return cmp.Compare(a.EvictionOrder, b.EvictionOrder) })
		for _, r := range queue {
			v := released(r)
			if r.EvictionOrder == 0 || gone[eviction.KeyOf(&v)] || told[r.Pool] >= most || RemovalsFail(s, r.Pool) {
				continue
			}
			told[r.Pool]++
			out = append(out, Eviction{
				Node: s.Name, Pool: r.Pool, Name: r.Name, Namespace: r.Namespace, Room: bytesOf(r.Room), LastUsed: r.LastUsed,
				Message: fmt.Sprintf("number %d in its pool's eviction order when room is needed", r.EvictionOrder),
			})
		}
	}
	slices.SortStableFunc(out, func(a, b Eviction) int { return cmp.Compare(later(a), later(b)) })
	return out
}

// RemovalsFail reports whether removals have failed in a pool of a node, so that no volume is evicted there for its room.
func RemovalsFail(s *flexlvmv1.NodeStorage, pool string) bool {
	return slices.ContainsFunc(s.Status.Pools, func(p flexlvmv1.Pool) bool { return p.Name == pool && p.RemovalsFail })
}

func later(e Eviction) int {
	if e.Reason == "" {
		return 1
	}
	return 0
}

func evictionOf(node string, e eviction.Eviction) Eviction {
	return Eviction{
		Node: node, Pool: string(e.Volume.Pool()), Name: string(e.Volume.Name), Namespace: e.Volume.Namespace, Room: e.Volume.Allocated,
		LastUsed: metav1.NewTime(e.Volume.LastUsed), Reason: e.Reason, Message: e.Message,
	}
}
