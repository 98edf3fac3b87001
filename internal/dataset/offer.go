package dataset

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Offer is the dataset that the pods of a namespace read: one of that namespace, or one that another
// namespace offers to it.
type Offer struct {
	Namespace string // of the dataset
	Hash      string
	Source    Source
	Class     map[string]string // parameters of the replicas' StorageClass
	Door      pv.Door
	Refused   string // why the dataset is not offered; empty if it is
}

// own returns the volume's own dataset.
func (s *Observed) own() Offer {
	return Offer{Namespace: s.Owner.Namespace, Hash: s.hash(), Source: s.Source, Class: s.Class, Door: s.Door}
}

// readOffer adds the offer of another namespace. Before anything is deleted for a missing offer, the API server
// itself has to confirm that; an error changes nothing.
func (r *reconciler) readOffer(ctx context.Context, observed *Observed, s *cacheView) error {
	offer, err := r.offerOf(ctx, r.cached, observed)
	if err == nil && offer.Refused != "" && (observed.Readers.Claim != nil || observed.Readers.Volume != nil) {
		offer, err = r.offerOf(ctx, r.live, observed)
	}
	if err != nil {
		return err
	}
	observed.Offer = offer
	for _, node := range s.nodes {
		if _, has := node.Labels[replica.NodeLabel(offer.Hash)]; has && offer.Refused == "" {
			observed.OfferNodes++
		}
	}
	return nil
}

// offerOf reads the offer. A namespace that is not named in sharedWith does not learn what exists.
func (r *reconciler) offerOf(ctx context.Context, from client.Reader, observed *Observed) (*Offer, error) {
	what, to := observed.Source.Shared, observed.Owner.Namespace
	refused := &Offer{Refused: fmt.Sprintf("VolumeManager %s/%s offers no volume %q to namespace %s: its owner has to name this namespace in the volume's sharedWith", what.namespace, what.name, what.id, to)}
	owner := &flexlvmv1.VolumeManager{}
	if err := from.Get(ctx, client.ObjectKey{Namespace: what.namespace, Name: what.name}, owner); err != nil {
		if apierrors.IsNotFound(err) {
			return refused, nil
		}
		return nil, fmt.Errorf("look for the offer of VolumeManager %s/%s: %w", what.namespace, what.name, err)
	}
	configs := owner.Spec.All()
	at := slices.IndexFunc(configs, func(v flexlvmv1.VolumeConfig) bool { return v.ID == what.id })
	if at < 0 || isDeleting(owner) || owner.Spec.State == flexlvmv1.StateCompleted || !slices.Contains(configs[at].SharedWith, to) {
		return refused, nil
	}
	source, err := ParseSource(configs[at])
	if err != nil || !source.Copies() || source.Writable() {
		return nil, fmt.Errorf("volume %q of VolumeManager %s/%s cannot be read as it is now, and its status says what is wrong", what.id, what.namespace, what.name)
	}
	class, err := r.Classes.Get(source.Class)
	if err != nil {
		return nil, fmt.Errorf("get StorageClass %q: %w", source.Class, err)
	}
	// A pod can define a FlexVolume itself, so the Flex driver cannot trust the owner that the volume's options
	// name.
	return &Offer{Namespace: owner.Namespace, Hash: hash(owner, what.id), Source: source, Class: class.Parameters, Door: pv.CSI}, nil
}

// planShared plans the use of the dataset that another namespace offers.
func (p *planner) planShared() {
	p.requeueAfter(whileShared)
	if why := p.Offer.Refused; why != "" {
		p.out.Failed, p.out.Status.Message = true, why
		if !p.deleteReaders() {
			p.out.Status.Message += "; running pods keep it, and no new pod can start"
		}
		return
	}
	p.planReaders()
	p.out.Status.VolumeSource = readersSource(p.Owner.Name, p.Config, true)
	p.out.Status.NodeAffinity = requiredAffinity(labelExists(replica.NodeLabel(p.Offer.Hash)))
	c := p.Readers.Claim
	switch {
	case p.out.Status.Message != "":
	case c == nil || isDeleting(c) || c.Status.Phase != corev1.ClaimBound:
		p.out.Status.Message = "waiting for its claim to be bound"
	case p.OfferNodes == 0:
		p.out.Status.Message = fmt.Sprintf("no node has the data of VolumeManager %s/%s yet", p.Offer.Namespace, p.Source.Shared.name)
	default:
		p.out.Status.ReadyReplicas, p.out.Loaded = p.count, p.count
		p.out.Status.Message = flexlvmv1.MessageSuccess
	}
}

// leadsTo reports whether a PersistentVolume leads to the dataset that is offered.
func leadsTo(v *corev1.PersistentVolume, offer Offer) bool {
	return v.Labels[replica.LabelShared] == offer.Hash && persistentvolume.Options(v)[volume.OptionVolume] == string(replica.VolumeName(offer.Hash))
}

// addShares adds the claims by which other namespaces read the volume.
func (r *reconciler) addShares(ctx context.Context, out *Observed) error {
	volumes := &corev1.PersistentVolumeList{}
	if err := r.cached.List(ctx, volumes, client.MatchingLabels{replica.LabelShared: out.hash()}); err != nil {
		return fmt.Errorf("list the PersistentVolumes by which others read dataset %s: %w", out.hash(), err)
	}
	for i := range volumes.Items {
		if ref := volumes.Items[i].Spec.ClaimRef; ref != nil {
			out.SharedBy = append(out.SharedBy, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name})
			out.shares = append(out.shares, &volumes.Items[i])
		}
	}
	slices.SortFunc(out.SharedBy, func(a, b client.ObjectKey) int {
		return slices.Compare([]string{a.Namespace, a.Name}, []string{b.Namespace, b.Name})
	})
	return nil
}

// maxShares bounds the number of claims of other namespaces in the status.
const maxShares = 50

// sharedClaims returns the names of the claims of other namespaces.
func (s *Observed) sharedClaims() []string {
	var out []string
	for i, key := range s.SharedBy {
		if i == maxShares {
			break
		}
		out = append(out, key.Namespace+"/"+key.Name)
	}
	return out
}

// requestsForReaders returns requests for the VolumeManagers that read a volume of offering, or want to.
func (r *reconciler) requestsForReaders(ctx context.Context, offering client.Object) (out []reconcile.Request) {
	all := &flexlvmv1.VolumeManagerList{}
	if err := r.cached.List(ctx, all); err != nil {
		return nil // they are also reconciled regularly, see whileShared
	}
	for i := range all.Items {
		for _, v := range all.Items[i].Spec.Given() {
			of := v.Options
			if v.SourceType == flexlvmv1.SourceShared && string(of["namespace"]) == offering.GetNamespace() && string(of["name"]) == offering.GetName() {
				out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
				break
			}
		}
	}
	return out
}
