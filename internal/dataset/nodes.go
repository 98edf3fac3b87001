package dataset

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// labelGrace is how long a newly registered Node may take to get its labels: until then a missing label means
// nothing.
const labelGrace = time.Minute

// notReadyFor is how long a node must not have been ready before nothing is expected of its loader: Kubernetes
// itself evicts pods five minutes after the node stops being ready, and never pods that tolerate that.
const notReadyFor = time.Minute

// notReady returns the nodes that have not been ready for notReadyFor.
func notReady(nodes []*corev1.Node, now time.Time) map[string]bool {
	out := map[string]bool{}
	for _, node := range nodes {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue && now.Sub(c.LastTransitionTime.Time) >= notReadyFor {
				out[node.Name] = true
			}
		}
	}
	return out
}

// nodeClasses are the nodes of the cluster, sorted by whether they may have replicas of a volume.
type nodeClasses struct {
	// fitting are the nodes that may have replicas; the scheduler chooses among them. matching are those that match
	// the affinity, tolerated or not. notMatching are those that do not match and are not new.
	fitting, matching, notMatching map[string]bool
}

// classifyNodes compares the nodes with the affinity and tolerations of a volume. A selector that cannot be parsed
// is an error: no node counts as not matching.
func classifyNodes(nodes []*corev1.Node, affinity *corev1.NodeAffinity, tolerations []corev1.Toleration, now time.Time) (nodeClasses, error) {
	out := nodeClasses{fitting: map[string]bool{}, matching: map[string]bool{}, notMatching: map[string]bool{}}
	for _, node := range nodes {
		match, err := matches(node, affinity)
		switch {
		case err != nil:
			return nodeClasses{}, err
		case match:
			out.matching[node.Name] = true
			if tolerated(node.Spec.Taints, tolerations) {
				out.fitting[node.Name] = true
			}
		case now.Sub(node.CreationTimestamp.Time) >= labelGrace:
			out.notMatching[node.Name] = true
		}
	}
	return out, nil
}

// tolerated ignores the taints that Kubernetes itself sets on a node temporarily.
func tolerated(taints []corev1.Taint, tolerations []corev1.Toleration) bool {
	return !slices.ContainsFunc(taints, func(taint corev1.Taint) bool {
		return !strings.HasPrefix(taint.Key, "node.kubernetes.io/") && repels(taint, tolerations)
	})
}

// repels reports whether a taint keeps a pod with these tolerations from its node.
func repels(taint corev1.Taint, tolerations []corev1.Toleration) bool {
	return taint.Effect != corev1.TaintEffectPreferNoSchedule &&
		!slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool { return tolerates(t, taint) })
}

// takesPods reports whether a node accepts new pods with these tolerations now. A node that does not may have
// replicas nevertheless: see tolerated.
func takesPods(node *corev1.Node, tolerations []corev1.Toleration) bool {
	taints := slices.Clone(node.Spec.Taints)
	if node.Spec.Unschedulable {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	return !slices.ContainsFunc(taints, func(taint corev1.Taint) bool { return repels(taint, tolerations) }) &&
		!slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
		})
}

func tolerates(t corev1.Toleration, taint corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	return t.Operator == corev1.TolerationOpExists || (t.Key != "" && t.Value == taint.Value)
}

func matches(node *corev1.Node, affinity *corev1.NodeAffinity) (bool, error) {
	if affinity == nil || affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true, nil
	}
	for _, term := range affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		byLabel, err := matchesAll(term.MatchExpressions, node.Labels)
		if err != nil {
			return false, err
		}
		byField, err := matchesAll(term.MatchFields, labels.Set{metav1.ObjectNameField: node.Name})
		if err != nil {
			return false, err
		}
		// A term without conditions matches no node.
		if byLabel && byField && len(term.MatchExpressions)+len(term.MatchFields) > 0 {
			return true, nil
		}
	}
	return false, nil
}

var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

func matchesAll(expressions []corev1.NodeSelectorRequirement, of labels.Set) (bool, error) {
	for _, e := range expressions {
		requirement, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
		if err != nil {
			return false, fmt.Errorf("read nodeAffinity, key %q: %w", e.Key, err)
		}
		if !requirement.Matches(of) {
			return false, nil
		}
	}
	return true, nil
}
