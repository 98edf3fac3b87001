package dataset

import (
	"slices"
	"strconv"
	"strings"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The status of a volume lists this many replicas by name, and the first few with full messages: thousands of
// replicas would not fit into one object of the API server.
const (
	maxReplicas  = 50
	maxInFull    = 10
	shortMessage = 200 // bytes
)

// truncateStatus counts the replicas by state and keeps only the listed ones in the status (see listed); indexes are
// the numbers of the replicas, in the same order. Failures of the other replicas are kept in groups.
func (p *planner) truncateStatus(indexes []int) {
	counts := map[flexlvmv1.ReplicaState]int32{}
	for _, r := range p.out.Status.Nodes {
		counts[r.State]++
	}
	if len(p.out.Status.Nodes) <= maxReplicas {
		return
	}
	p.out.Status.States = counts
	var failures []flexlvmv1.ReplicaFailure
	var nodes []flexlvmv1.ReplicaStatus
	numbers := map[string][]int{} // of replicas, by the attempt that failed
	for i, chosen := range listed(p.out.Status.Nodes) {
		r := p.out.Status.Nodes[i]
		if chosen {
			nodes = append(nodes, r)
			continue
		}
		if r.Attempt == "" {
			continue
		}
		if numbers[r.Attempt] == nil {
			failures = append(failures, flexlvmv1.ReplicaFailure{Attempt: r.Attempt, Message: truncateMessage(r.Message)})
		}
		numbers[r.Attempt] = append(numbers[r.Attempt], indexes[i])
	}
	for i := range failures {
		failures[i].Replicas = ranges(numbers[failures[i].Attempt])
	}
	p.out.Status.Failures = failures
	p.out.Status.Nodes = nodes
	for i := maxInFull; i < maxReplicas; i++ {
		p.out.Status.Nodes[i].Message = truncateMessage(p.out.Status.Nodes[i].Message)
	}
}

// listed chooses maxReplicas of more replicas: first the displaced ones, which are recorded nowhere else, then the
// failed ones, because groups of replicas do not name their nodes, then those whose last refresh failed, which is
// recorded only in their message (keepStale), then the first of the rest.
func listed(nodes []flexlvmv1.ReplicaStatus) []bool {
	out, room := make([]bool, len(nodes)), maxReplicas
	choose := func(which func(flexlvmv1.ReplicaStatus) bool) {
		for i, r := range nodes {
			if room > 0 && !out[i] && which(r) {
				out[i], room = true, room-1
			}
		}
	}
	choose(isDisplaced)
	choose(func(r flexlvmv1.ReplicaStatus) bool { return r.State == flexlvmv1.ReplicaFailed })
	choose(func(r flexlvmv1.ReplicaStatus) bool { return strings.HasPrefix(r.Message, refreshFailed) })
	choose(func(flexlvmv1.ReplicaStatus) bool { return true })
	return out
}

func isDisplaced(r flexlvmv1.ReplicaStatus) bool { return r.State == flexlvmv1.ReplicaDisplaced }

func truncateMessage(message string) string { return volume.Clip(message, shortMessage, " …") }

// ranges formats ascending numbers as 1-3,7.
func ranges(numbers []int) string {
	var out []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		text := strconv.Itoa(numbers[i])
		if j > i {
			text += "-" + strconv.Itoa(numbers[j])
		}
		out = append(out, text)
		i = j + 1
	}
	return strings.Join(out, ",")
}

// inRanges reports whether a number is in the output of ranges.
func inRanges(text string, number int) bool {
	return slices.ContainsFunc(strings.Split(text, ","), func(part string) bool {
		from, to, is := strings.Cut(part, "-")
		if !is {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		return err == nil && err2 == nil && first <= number && number <= last
	})
}
