package overview

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/migration"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// StillThere returns the PersistentVolumes of a claim, of any driver, that the claim does not use. No node
// reports their volumes as released, but one of them may be what the claim had last. claim is nil if the claim
// does not exist.
func StillThere(objects []corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, w Wanted) (out []corev1.PersistentVolume) {
	for i := range objects {
		object := &objects[i]
		if OfClaim(object, w) && !uses(claim, object) {
			out = append(out, *object)
		}
	}
	slices.SortStableFunc(out, func(a, b corev1.PersistentVolume) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	return out
}

// OfClaim reports whether a PersistentVolume names the claim in w.
func OfClaim(object *corev1.PersistentVolume, w Wanted) bool {
	ref := object.Spec.ClaimRef
	on := object.Labels[pv.LabelNode]
	return ref != nil && ref.Namespace == w.Namespace && ref.Name == w.Claim && (w.Node == "" || on == "" || on == pv.NodeLabelValue(w.Node))
}

// uses reports whether a claim that is not being deleted uses the volume of a PersistentVolume.
func uses(claim *corev1.PersistentVolumeClaim, object *corev1.PersistentVolume) bool {
	if claim == nil || claim.DeletionTimestamp != nil {
		return false
	}
	return claim.Spec.VolumeName == object.Name || claim.UID == object.Spec.ClaimRef.UID || migration.StandsIn(object, claim)
}

// CheckUnambiguous fails if a PersistentVolume of the claim still exists for a volume other than the one found by the
// claim's name, because it is not clear which one the user means.
func CheckUnambiguous(found Candidate, w Wanted, still []corev1.PersistentVolume) error {
	if w.Volume != "" {
		return nil
	}
	others := slices.DeleteFunc(slices.Clone(still), func(object corev1.PersistentVolume) bool {
		parsed, err := persistentvolume.Parse(&object)
		return err == nil && string(parsed.Volume) == found.Released.Name && parsed.Group == volume.PoolName(found.Released.Pool).Group()
	})
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("claim %s/%s had several volumes. To use the released one, give:\n  %s%s", w.Namespace, w.Claim, found, Kept(others))
}

// Kept returns a text that lists the existing PersistentVolumes of a claim and what to do if one of their
// volumes is meant; empty if there are none.
func Kept(still []corev1.PersistentVolume) string {
	if len(still) == 0 {
		return ""
	}
	var out strings.Builder
	out.WriteString("\nThese PersistentVolumes of the claim still exist, and no claim uses them:")
	retain := false
	for i := range still[:min(len(still), 20)] {
		object := &still[i]
		policy := object.Spec.PersistentVolumeReclaimPolicy
		retain = retain || policy != corev1.PersistentVolumeReclaimRetain
		state := string(object.Status.Phase)
		if object.DeletionTimestamp != nil {
			state += ", being deleted"
		}
		fmt.Fprintf(&out, "\n  PersistentVolume %s (%s, reclaim policy %s, created %s)", object.Name, state, policy, object.CreationTimestamp.UTC().Format("2006-01-02 15:04:05Z"))
	}
	out.WriteString("\nTo use the volume of one of these PersistentVolumes, ")
	if retain {
		out.WriteString(`protect it immediately with kubectl patch pv NAME -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}', and then `)
	}
	out.WriteString("follow docs/undelete.md (when the PersistentVolume is still there)")
	return out.String()
}

// unknownSince fails if one of others, whose claim is not known, may have been released after the volume that
// was found by the claim's name.
func unknownSince(others []Candidate, w Wanted, found Candidate) error {
	if w.Volume != "" {
		return nil
	}
	unknown := slices.DeleteFunc(slices.Clone(others), func(c Candidate) bool {
		return c.Claim() != "" || c.Released.Kind != "" || c.knowsRelease() && c.Released.Released.Before(&found.Released.Released)
	})
	if len(unknown) == 0 {
		return nil
	}
	why := "because the claims of some released volumes are not known; select one with --volume"
	if !slices.ContainsFunc(unknown, func(c Candidate) bool { return !c.Unseen }) {
		why = fmt.Sprintf("because volumes whose claim is not known were released in %s; the report lists them although the group is not seen now. --volume %s selects the volume that was found. If the group will never be back there, delete its entries from status.released (kubectl edit nodestorage NODE --subresource=status; docs/undelete.md: a volume group that is not seen)",
			groupsOf(unknown), found.Released.Name)
	}
	return fmt.Errorf("claim %s/%s may have had a later volume than the one that was found, %s. The volume that was found:\n  %s\nVolumes whose claim is not known:%s",
		w.Namespace, w.Claim, why, found, listed(unknown))
}

// groupsOf returns the volume groups of candidates, with their nodes.
func groupsOf(all []Candidate) string {
	var out []string
	for _, c := range all {
		out = append(out, fmt.Sprintf("volume group %s of node %s", c.group(), c.Node))
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ", ")
}

// unlistedSince fails if a node may have a volume of the claim that its report does not list and that was
// released after the one found by the claim's name.
func unlistedSince(storages []flexlvmv1.NodeStorage, w Wanted, found Candidate) error {
	if w.Volume != "" {
		return nil
	}
	for i := range storages {
		s := &storages[i]
		n, until := unlisted(s)
		if w.Node != "" && s.Name != w.Node || n == 0 || !until.IsZero() && !until.After(found.Released.Released.Time) {
			continue
		}
		return fmt.Errorf("node %s has %d released volumes that it does not list, and one of them may be a later volume of claim %s/%s than this one:\n  %s\nflexlvm volumes list on the node shows them all. Select this volume with --volume, or restore, retain or forget a volume that is not listed on its node (docs/undelete.md: bring it back)",
			s.Name, n, w.Namespace, w.Claim, found)
	}
	return nil
}

// unlisted returns how many released volumes the report of a node does not list, and the latest time at which
// they can have been released; zero if that is not known.
func unlisted(s *flexlvmv1.NodeStorage) (n int32, until time.Time) {
	listed := s.Status.Released
	if n = max(0, s.Status.ReleasedCount-int32(len(listed))); n == 0 {
		return 0, until
	}
	for _, r := range listed[:min(len(listed), flexlvmv1.LastReleased)] {
		if perhapsUnseen(s, r.Pool) {
			break
		}
		until = r.Released.Time
	}
	return n, until
}

// perhapsUnseen reports whether the node may be unable to see a pool, or to read it. Volumes released in such a pool
// are listed after all others, so their times do not bound those of unlisted volumes.
func perhapsUnseen(s *flexlvmv1.NodeStorage, pool string) bool {
	return unseen(s, pool) || slices.ContainsFunc(s.Status.Pools, func(p flexlvmv1.Pool) bool {
		return p.Name == pool && p.Layout == string(volume.Directory) && p.Closed != ""
	})
}

// unseen reports whether the node does not see a pool. Its report lists volumes that were released there until the
// volume group is seen again.
func unseen(s *flexlvmv1.NodeStorage, pool string) bool {
	return !slices.ContainsFunc(s.Status.Pools, func(p flexlvmv1.Pool) bool { return p.Name == pool })
}
