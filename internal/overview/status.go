package overview

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Severity is how bad a problem is.
type Severity string

// The severities, as in the alerts.
const (
	Critical Severity = "critical"
	Warning  Severity = "warning"
)

func (s Severity) weight() int {
	switch s {
	case Critical:
		return 2
	case Warning:
		return 1
	}
	return 0
}

// A Problem is a problem of a node and the next step to solve it.
type Problem struct {
	Severity Severity `json:"severity"`
	Pool     string   `json:"pool,omitempty"`
	Message  string   `json:"message"`
	Next     string   `json:"next"`
}

// A Pool is a pool of a node. Quantities are bytes.
type Pool struct {
	Name        string       `json:"name"`
	Layout      string       `json:"layout"`
	Size        volume.Bytes `json:"size"`
	InUse       volume.Bytes `json:"inUse"` // excludes volumes that may be evicted
	Reclaimable volume.Bytes `json:"reclaimable"`
	Free        volume.Bytes `json:"free"`
	Promised    volume.Bytes `json:"promised"` // space that PersistentVolumes still need
	// ThinData and ThinMetadata are how full the devices of a thin pool are, in percent.
	ThinData     *int32 `json:"thinDataPercent,omitempty"`
	ThinMetadata *int32 `json:"thinMetadataPercent,omitempty"`
}

// add adds the quantities of another pool.
func (p *Pool) add(other Pool) {
	p.Size += other.Size
	p.InUse += other.InUse
	p.Reclaimable += other.Reclaimable
	p.Free += other.Free
	p.Promised += other.Promised
}

// A Node is a node that has reported.
type Node struct {
	Name     string      `json:"name"`
	Seen     metav1.Time `json:"seen"`
	Version  string      `json:"version,omitempty"`
	Volumes  int32       `json:"volumes"`
	Pools    []Pool      `json:"pools"`
	Problems []Problem   `json:"problems"`

	total   Pool         // of the pools that are not unused
	fullest volume.Bytes // share of the fullest pool that volumes in use take, in thousandths
}

// worst returns the weight of the worst problem.
func (n *Node) worst() (w int) {
	for _, p := range n.Problems {
		w = max(w, p.Severity.weight())
	}
	return w
}

// A Status is the state of a cluster at one moment.
type Status struct {
	Nodes []Node `json:"nodes"` // worst first
	Total Pool   `json:"total"`
	// Ailing is the number of nodes with a problem.
	Ailing int `json:"ailing"`
}

// StatusOf summarizes the nodes' reports.
func StatusOf(storages []flexlvmv1.NodeStorage, now time.Time) Status {
	out := Status{Nodes: []Node{}, Total: Pool{Name: "all"}}
	for i := range storages {
		n := nodeOf(&storages[i], now)
		out.Total.add(n.total)
		if len(n.Problems) > 0 {
			out.Ailing++
		}
		out.Nodes = append(out.Nodes, n)
	}
	slices.SortFunc(out.Nodes, func(a, b Node) int {
		return cmp.Or(cmp.Compare(b.worst(), a.worst()), cmp.Compare(len(b.Problems), len(a.Problems)),
			cmp.Compare(b.fullest, a.fullest), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func nodeOf(s *flexlvmv1.NodeStorage, now time.Time) Node {
	n := Node{Name: s.Name, Seen: s.Status.ObservedTime, Version: s.Status.Version, Volumes: s.Status.Volumes, Pools: []Pool{}}
	for _, p := range s.Status.Pools {
		size, free, reclaimable := bytesOf(p.Size), bytesOf(p.Free), bytesOf(p.Reclaimable)
		pool := Pool{
			Name: p.Name, Layout: p.Layout, Size: size, Free: free, Reclaimable: reclaimable,
			InUse: max(0, size-free-reclaimable), Promised: bytesOf(p.Promised),
			ThinData: p.ThinDataPercent, ThinMetadata: p.ThinMetadataPercent,
		}
		n.Pools = append(n.Pools, pool)
		if !unused(&p) {
			n.total.add(pool)
		}
		// Only pools that flexlvm uses count, as for the daemon's thresholds: other volume groups, such as the
		// operating system's, are usually full.
		if size > 0 && (len(p.VolumesByState) > 0 || p.Promised.Sign() > 0) {
			n.fullest = max(n.fullest, max(0, size-free-reclaimable)*1000/size)
		}
	}
	n.Problems = append(nodeProblems(s, now), poolProblems(s)...)
	slices.SortStableFunc(n.Problems, func(a, b Problem) int { return cmp.Compare(b.Severity.weight(), a.Severity.weight()) })
	return n
}

// unused reports whether a pool is a volume group of others, such as the operating system's: it has logical volumes, but
// none of flexlvm, and nothing is promised in it. An empty group may be waiting for its first volume. Thin pools and
// directory pools are always flexlvm's.
func unused(p *flexlvmv1.Pool) bool {
	name := volume.PoolName(p.Name)
	return p.ForeignVolumes > 0 && len(p.VolumesByState) == 0 && p.Promised.Sign() <= 0 && !name.Thin() && !name.Directory()
}

func nodeProblems(s *flexlvmv1.NodeStorage, now time.Time) []Problem {
	out := []Problem{}
	add := func(severity Severity, message, next string) {
		out = append(out, Problem{Severity: severity, Message: message, Next: next})
	}
	if seen := s.Status.ObservedTime.Time; now.Sub(seen) > flexlvmv1.MaxReportAge {
		message := "the node daemon has not reported yet"
		if !seen.IsZero() {
			message = fmt.Sprintf("the node daemon has not reported since %s", seen.UTC().Format(time.RFC3339))
		}
		add(Critical, message, "kubectl get pods -n flexlvm-system -l app.kubernetes.io/name=flexlvm-gc --field-selector spec.nodeName="+s.Name)
	}
	for _, c := range s.Status.Conditions {
		switch {
		case c.Type == flexlvmv1.ConditionReady && c.Status == metav1.ConditionFalse:
			add(Critical, c.Message, "run flexlvm doctor on the node")
		case c.Type == flexlvmv1.ConditionShortfall && c.Status == metav1.ConditionTrue:
			add(Critical, c.Message, "enlarge the pool, or delete claims that nobody needs")
		case c.Type == flexlvmv1.ConditionShortfall && c.Reason == flexlvmv1.ReasonRemovalsFail:
			add(Warning, c.Message, "kubectl get events -A --field-selector reason=VolumeNotEvicted")
		case c.Type == flexlvmv1.ConditionShortfall && c.Reason == flexlvmv1.ReasonFullOfVolumesInUse:
			add(Warning, c.Message, "enlarge the pool before its free space is used up")
		}
	}
	if s.Status.OrphanCount > 0 {
		add(Warning, volume.Pluralize(s.Status.OrphanCount, "volume", "volumes")+" without a PersistentVolume, or with a problem", "kubectl describe nodestorage "+s.Name)
	}
	return out
}

// Usage of metadata, in percent, from which it is a problem, as in the alerts. Of LVM's metadata area, only half is
// usable.
const (
	warnMetadata     = 80
	warnThinMetadata = 80
)

// metadataAdvice returns what to do about LVM's metadata area of a group. At 100 %, LVM reports that nothing of it is
// free, which proves nothing (with lvmetad, it always reports that).
func metadataAdvice(used int32, group string) string {
	if used >= 100 {
		return "run flexlvm doctor --group " + group + " on the node; nothing is evicted while LVM reports that nothing of the area is free, as LVM 2.02 always does with lvmetad"
	}
	return "from 90 % on, the node daemon evicts released volumes for it; if these are not enough, delete claims on the node, because the area cannot be enlarged"
}

func poolProblems(s *flexlvmv1.NodeStorage) (out []Problem) {
	for _, p := range s.Status.Pools {
		add := func(severity Severity, message, next string) {
			out = append(out, Problem{Severity: severity, Pool: p.Name, Message: message, Next: next})
		}
		if p.MissingDevices > 0 {
			add(Critical, fmt.Sprintf("LVM does not find %d of its devices", p.MissingDevices), "run pvs on the node, and reconnect the missing disk")
		}
		if unused(&p) {
			continue
		}
		group := string(volume.PoolName(p.Name).Group())
		if p.Closed != "" {
			add(Warning, "takes no new volumes: "+p.Closed, "run flexlvm doctor --group "+group+" on the node")
		}
		if p.MetadataUsedPercent >= warnMetadata {
			add(Warning, fmt.Sprintf("the usable half of LVM's metadata area is %d %% full", p.MetadataUsedPercent), metadataAdvice(p.MetadataUsedPercent, group))
		}
		if p.ThinMetadataPercent != nil && *p.ThinMetadataPercent >= warnThinMetadata {
			add(Critical, fmt.Sprintf("the metadata of the thin pool is %d %% full", *p.ThinMetadataPercent), "on the node, run lvextend --poolmetadatasize +64M "+p.Name+
				"; if group "+group+" has less than 128 MiB free, first add a disk (vgextend); without one, delete snapshots, clones and claims in the pool")
		}
	}
	return out
}
