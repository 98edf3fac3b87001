package page

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Limits of what an answer shows.
const (
	maxFound         = 50
	maxFits          = 12
	maxGoing         = 8
	maxPodNamespaces = 3 // number of namespaces whose pods are listed
)

// A found is the result of a search.
type found struct {
	Volumes     []foundVolume
	MoreVolumes int
	Nodes       []node
	MoreNodes   int
}

type foundVolume struct {
	overview.Volume
	Link string
	Used string
	Pod  string
}

// find searches for claims, volumes and nodes whose names contain the text.
func (s *Server) find(ctx context.Context, d *digest, text string, now time.Time) *found {
	out := &found{}
	text = strings.ToLower(text)
	holds := func(names ...string) bool { return strings.Contains(strings.ToLower(strings.Join(names, "/")), text) }
	objects := overview.Objects{Storages: d.Storages}
	for i := range d.Volumes {
		if ref := d.Volumes[i].Spec.ClaimRef; holds(d.Volumes[i].Name) || ref != nil && holds(ref.Namespace, ref.Name) {
			objects.Volumes = append(objects.Volumes, d.Volumes[i])
		}
	}
	objects.Pods = s.podsOf(ctx, objects.Volumes)
	for _, v := range overview.VolumesOf(objects, overview.Filter{}) {
		switch {
		case !holds(v.Namespace, v.Claim) && !holds(v.Name):
		case len(out.Volumes) == maxFound:
			out.MoreVolumes++
		default:
			out.Volumes = append(out.Volumes, foundVolume{v, nodeLink(v.Node), ago(v.LastUsed, now), strings.Join(v.Pods, ", ")})
		}
	}
	for i := range d.status.Nodes {
		switch {
		case !holds(d.status.Nodes[i].Name):
		case len(out.Nodes) == maxFits:
			out.MoreNodes++
		default:
			out.Nodes = append(out.Nodes, nodeOf(&d.status.Nodes[i], now))
		}
	}
	return out
}

// podsOf lists the pods of the first namespaces. Without permission to list pods, it returns none.
func (s *Server) podsOf(ctx context.Context, volumes []corev1.PersistentVolume) (all []corev1.Pod) {
	seen := map[string]bool{}
	for i := range volumes {
		ref := volumes[i].Spec.ClaimRef
		if ref == nil || seen[ref.Namespace] || len(seen) == maxPodNamespaces {
			continue
		}
		seen[ref.Namespace] = true
		if pods, err := s.source.Pods(ctx, ref.Namespace); err == nil {
			all = append(all, pods...)
		}
	}
	return all
}

// A whatIf is the prediction for a hypothetical claim.
type whatIf struct {
	Error string
	Says  string
	Fits  []fit
	More  int
}

type fit struct {
	overview.Fit
	Later    string // time until the volumes to evict are old enough
	Link     string
	Goes     []eviction
	MoreGoes int
}

// whatIf runs the planner of kubectl flexlvm plan.
func (s *Server) whatIf(ctx context.Context, d *digest, q query, now time.Time) *whatIf {
	spec, err := s.source.Spec(ctx, q.Claim, q.Class)
	if err != nil {
		return &whatIf{Error: err.Error()}
	}
	fits := overview.FitsOf(d.Objects, spec, now)
	good := 0
	for _, f := range fits {
		if f.Fits {
			good++
		}
	}
	out := &whatIf{Says: fmt.Sprintf("A claim of %s of class %s fits on %d of %s.", spec.Size, q.Class, good, volume.Pluralize(len(fits), "node", "nodes"))}
	if good < q.Nodes {
		out.Says += fmt.Sprintf(" %s needed: %d too few.", volume.Pluralize(q.Nodes, "is", "are"), q.Nodes-good)
	}
	shown := min(len(fits), max(maxFits, min(q.Nodes, 4*maxFits)))
	for _, f := range fits[:shown] {
		one := fit{Fit: f, Link: nodeLink(f.Node)}
		if !f.After.IsZero() {
			one.Later = duration.HumanDuration(f.After.Sub(now))
		}
		for _, e := range f.Evictions {
			one.Goes = append(one.Goes, evictionOf(e, now))
		}
		for _, e := range f.Then {
			then := evictionOf(e, now)
			then.When = "then"
			one.Goes = append(one.Goes, then)
		}
		if more := len(one.Goes) - maxGoing; more > 0 {
			one.Goes, one.MoreGoes = one.Goes[:maxGoing], more
		}
		out.Fits = append(out.Fits, one)
	}
	out.More = len(fits) - shown
	return out
}
