package page

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Limits of what the page shows at once, so that it is as fast for 1,000 nodes as for 30.
const (
	maxNodes     = 24
	maxProblems  = 12
	maxEvictions = 20
	maxDatasets  = 12
)

// A live view is the part of the page that is updated while it is open.
type live struct {
	Reading  bool
	Lacks    []string
	Headline string
	Total    bar
	Totals   []figure

	Problems     []problem
	MoreProblems int

	Nodes      []node
	First      int // number of the first node shown, from 1
	Last, All  int
	Prev, Next string // links

	Queue     []eviction
	MoreQueue int

	Datasets     []dataset
	MoreDatasets int

	Node *nodeQueue
}

// A figure is a value with its name.
type figure struct{ Name, Class, Value string }

type problem struct {
	overview.Problem
	Node string
}

type node struct {
	Name     string
	Link     string
	Severity overview.Severity
	Seen     string
	Volumes  string
	Version  string
	Pools    []pool
}

type pool struct {
	overview.Pool
	Bar     bar
	Figures []figure
}

type eviction struct {
	overview.Eviction
	When string
	Used string
	Link string
}

// liveOf returns what a window shows of a digest.
func liveOf(d *digest, q query, now time.Time) live {
	out := live{
		Reading: d.Reading, Lacks: d.Lacks, Headline: headline(d), Total: barOf(total(d.status)), Totals: figuresOf(d.status.Total),
		All: len(d.status.Nodes),
	}
	for i := range d.status.Nodes {
		for _, p := range d.status.Nodes[i].Problems {
			if len(out.Problems) < maxProblems {
				out.Problems = append(out.Problems, problem{p, d.status.Nodes[i].Name})
			} else {
				out.MoreProblems++
			}
		}
	}
	from := min(q.From, max(0, out.All-1)) / maxNodes * maxNodes
	to := min(out.All, from+maxNodes)
	for i := range d.status.Nodes[from:to] {
		out.Nodes = append(out.Nodes, nodeOf(&d.status.Nodes[from+i], now))
	}
	out.First, out.Last = min(from+1, out.All), to
	if from > 0 {
		out.Prev = fromLink(from - maxNodes)
	}
	if to < out.All {
		out.Next = fromLink(to)
	}
	shown := min(len(d.next), maxEvictions)
	for _, e := range d.next[:shown] {
		out.Queue = append(out.Queue, evictionOf(e, now))
	}
	out.MoreQueue = len(d.next) - shown
	shown = min(len(d.datasets), maxDatasets)
	out.Datasets, out.MoreDatasets = d.datasets[:shown], len(d.datasets)-shown
	if q.Node != "" {
		out.Node = queueOf(d.Storages, q.Node, now)
	}
	return out
}

func headline(d *digest) string {
	switch {
	case len(d.status.Nodes) == 0 && d.Reading:
		return "Reading the cluster."
	case len(d.status.Nodes) == 0:
		return "No node has reported."
	case d.status.Ailing == 0:
		return volume.Pluralize(len(d.status.Nodes), "node, and it needs no attention.", "nodes, and none needs attention.")
	}
	verb := "need"
	if d.status.Ailing == 1 {
		verb = "needs"
	}
	return fmt.Sprintf("%d of %s %s attention.", d.status.Ailing, volume.Pluralize(len(d.status.Nodes), "node", "nodes"), verb)
}

func total(s overview.Status) overview.Pool {
	all := s.Total
	all.Name = "All pools"
	return all
}

func figuresOf(p overview.Pool) []figure {
	return []figure{
		{"In use", "in-use", p.InUse.String() + " · " + share(p.InUse, p.Size)}, {"Promised", "promised", p.Promised.String()},
		{"Reclaimable", "reclaimable", p.Reclaimable.String()}, {"Free", "free", p.Free.String()}, {"Size", "size", p.Size.String()},
	}
}

func nodeOf(n *overview.Node, now time.Time) node {
	out := node{Name: n.Name, Link: nodeLink(n.Name), Seen: ago(n.Seen, now), Volumes: volume.Pluralize(n.Volumes, "volume", "volumes"), Version: n.Version}
	if len(n.Problems) > 0 {
		out.Severity = n.Problems[0].Severity
	}
	for _, p := range n.Pools {
		out.Pools = append(out.Pools, pool{p, barOf(p), figuresOf(p)})
	}
	return out
}

func evictionOf(e overview.Eviction, now time.Time) eviction {
	out := eviction{Eviction: e, When: "later", Used: ago(e.LastUsed, now), Link: nodeLink(e.Node)}
	if e.Reason != "" {
		out.When = "now"
	}
	return out
}

func nodeLink(name string) string { return "?" + url.Values{"node": {name}}.Encode() + "#node" }

func fromLink(from int) string { return "?from=" + strconv.Itoa(max(0, from)) + "#nodes" }

// ago returns how long ago a time was, as kubectl prints it.
func ago(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(t.Time)))
}

// A nodeQueue lists what was released on one node: the volumes to be evicted, in order, and those that are kept
// and why.
type nodeQueue struct {
	Name     string
	Missing  bool
	Released []released
	Unlisted int32
	Evicted  []evicted
}

type released struct {
	flexlvmv1.ReleasedVolume
	Room volume.Bytes
	Used string
	Why  string
}

type evicted struct {
	flexlvmv1.Eviction
	Size volume.Bytes
	Ago  string
}

// why explains what keeps a volume.
var why = map[string]string{
	flexlvmv1.KeptTooYoung: "kept: it was released less than --min-age ago",
	flexlvmv1.KeptInUse:    "kept: it is in use, or snapshots depend on it",
	flexlvmv1.KeptWanted:   "kept: a PersistentVolume names it",
	flexlvmv1.KeptRemoving: "it is being removed",
	flexlvmv1.KeptProblem:  "kept: it, or its pool, has a problem",
	flexlvmv1.KeptRetained: "kept: it is retained until a person gives it up (kubectl flexlvm forget)",
}

func queueOf(storages []flexlvmv1.NodeStorage, name string, now time.Time) *nodeQueue {
	i := slices.IndexFunc(storages, func(s flexlvmv1.NodeStorage) bool { return s.Name == name })
	if i < 0 {
		return &nodeQueue{Name: name, Missing: true}
	}
	node := &storages[i]
	s := &node.Status
	out := &nodeQueue{Name: name, Unlisted: max(0, s.ReleasedCount-int32(len(s.Released)))}
	for _, r := range s.Released {
		one := released{ReleasedVolume: r, Room: volume.Bytes(r.Room.Value()), Used: ago(r.LastUsed, now), Why: cmp.Or(why[r.Kept], "kept: "+r.Kept)}
		switch {
		case r.EvictionOrder > 0 && overview.RemovalsFail(node, r.Pool):
			one.Why = fmt.Sprintf("number %d in its pool's eviction order, but removals in the pool fail, so it is not evicted for its room until that is corrected", r.EvictionOrder)
		case r.EvictionOrder > 0:
			one.Why = fmt.Sprintf("number %d in its pool's eviction order when room is needed", r.EvictionOrder)
		}
		out.Released = append(out.Released, one)
	}
	slices.SortStableFunc(out.Released, func(a, b released) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(uint32(a.EvictionOrder)-1, uint32(b.EvictionOrder)-1)) // 0, which is not evicted, comes last
	})
	for _, e := range s.Evictions {
		out.Evicted = append(out.Evicted, evicted{e, volume.Bytes(e.Size.Value()), ago(e.Time, now)})
	}
	return out
}
