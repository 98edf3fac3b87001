package provision

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/flexlvm/flexlvm/internal/ledger"
)

// chooseNode picks the node for a claim whose class binds immediately, so that no scheduler has chosen one:
// of the nodes that accept pods and have room for the volume, the one with the most room. A node that offers less for a
// while, to keep the scheduler away, counts with all of its room. If an earlier attempt may have written the
// PersistentVolume, it is the same node again, because its room stays reserved there anyway.
func (p *Provisioner) chooseNode(class *storagev1.StorageClass, parameters Parameters, want ledger.Want) (string, error) {
	eligible := func(name string) bool {
		node, err := p.Listers.Nodes.Get(name)
		return err == nil && acceptsPods(node) && allowed(class, node)
	}
	if name, is := p.Ledger.WrittenOn(want.PV); is && eligible(name) && p.Ledger.Fits(name, want) == nil {
		return name, nil
	}
	of := parameters.Spec
	of.FSType = want.Spec.FSType // a raw block volume has none, and needs no room for one
	var (
		best      string
		bestOffer ledger.Offer
	)
	for _, name := range p.Ledger.Nodes() {
		if !eligible(name) {
			continue
		}
		offer, has := p.Ledger.Offer(name, of)
		if has && (best == "" || offer.Room > bestOffer.Room) && p.Ledger.Fits(name, want) == nil {
			best, bestOffer = name, offer
		}
	}
	if best != "" {
		return best, nil
	}
	none := fmt.Sprintf("no node that may run pods and that StorageClass %q allows", class.Name)
	_, why := shortage(none, class.Name, parameters.Pool(), want.Spec.Size, p.Ledger.Largest(of, eligible))
	return "", fmt.Errorf("%s; it is retried", why)
}

// acceptsPods reports whether a node accepts pods without special tolerations.
func acceptsPods(node *corev1.Node) bool {
	for _, t := range node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute {
			return false
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return false
		}
	}
	return !node.Spec.Unschedulable
}

// allowed reports whether the class allows a node: one of its terms must match completely.
func allowed(class *storagev1.StorageClass, node *corev1.Node) bool {
	if len(class.AllowedTopologies) == 0 {
		return true
	}
	for _, term := range class.AllowedTopologies {
		if matches(term, labels.Set(node.Labels)) {
			return true
		}
	}
	return false
}

func matches(term corev1.TopologySelectorTerm, of labels.Set) bool {
	for _, e := range term.MatchLabelExpressions {
		one := false
		for _, v := range e.Values {
			one = one || of.Has(e.Key) && of.Get(e.Key) == v
		}
		if !one {
			return false
		}
	}
	return len(term.MatchLabelExpressions) > 0
}
