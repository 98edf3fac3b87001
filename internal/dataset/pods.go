package dataset

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/replica"
)

// podsFresh is how long a round uses a list of pods, so that no decision is based on a much older list, however
// slow the rest of the round is.
const podsFresh = 10 * time.Second

// users are the pods of a namespace that use volumes of a VolumeManager, by the hashes of the volumes.
type users struct {
	of map[string][]user
	// at is when the request to the API server began, and done when it ended.
	at, done time.Time
}

// A user is a pod that uses a volume.
type user struct{ pod, node string }

// firstOf returns the first maxInFull names of a list, and how many more there are: a message that names thousands of
// pods would not fit into the status.
func firstOf(names []string) string {
	if len(names) <= maxInFull {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxInFull], ", "), len(names)-maxInFull)
}

// namespaces returns the namespaces whose pods may use the volume.
func (s *Observed) namespaces() []string {
	out := []string{s.Owner.Namespace}
	for _, key := range s.SharedBy {
		out = append(out, key.Namespace)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// claimsIn returns the claims by which pods of a namespace use the volume.
func (s *Observed) claimsIn(namespace string) (claims []string) {
	if namespace == s.Owner.Namespace {
		claims = append(claims, replica.ReadersClaim(s.Owner.Name, s.Config.ID))
		for index := range s.Replicas {
			claims = append(claims, replicaName(s.Owner.Name, s.Config.ID, index))
		}
	}
	for _, key := range s.SharedBy {
		if key.Namespace == namespace {
			claims = append(claims, key.Name)
		}
	}
	return claims
}

// consumers calls each with the pods that use the volume, read from the API server. A pod that is seen here or in usersIn
// clears the record of the volume's lists: an upload that began before is not enough, even if the rest of the list fails,
// the pass ends without writing anything, and the pod is gone at the next pass.
func (r *reconciler) consumers(ctx context.Context, observed *Observed, each func(*corev1.Pod)) error {
	for _, namespace := range observed.namespaces() {
		err := r.Pods(ctx, namespace, func(pod *corev1.Pod) {
			if observed.consumes(pod) {
				r.lists.remove(observed.hash())
				each(pod)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// consumersOnce returns the pods that use one of the volumes of a round, and when they were listed. A namespace
// is listed once for all volumes: one list for each could take longer than maxListGap. Before anything is
// given up, confirmUnused lists again.
func (r *reconciler) consumersOnce(ctx context.Context, observed *Observed, s *cacheView) (out []user, at time.Time, err error) {
	at = r.now()
	for _, namespace := range observed.namespaces() {
		found, known := s.users[namespace]
		if !known || r.now().Sub(found.done) > podsFresh {
			if found, err = r.usersIn(ctx, namespace, s.observed); err != nil {
				return nil, at, err
			}
			if s.users == nil {
				s.users = map[string]users{}
			}
			s.users[namespace] = found
		}
		if found.at.Before(at) {
			at = found.at
		}
		out = append(out, found.of[observed.hash()]...)
	}
	return out, at, nil
}

// usersIn lists the pods of a namespace and returns which of them use which volumes. Like consumers, it clears the record
// of the lists of each volume that a pod uses.
func (r *reconciler) usersIn(ctx context.Context, namespace string, volumes []*Observed) (users, error) {
	byClaim := map[string][]*Observed{}
	for _, observed := range volumes {
		for _, claim := range observed.claimsIn(namespace) {
			byClaim[claim] = append(byClaim[claim], observed)
		}
	}
	out := users{of: map[string][]user{}, at: r.now()}
	err := r.Pods(ctx, namespace, func(pod *corev1.Pod) {
		one, used := user{pod.Name, pod.Spec.NodeName}, map[string]bool{}
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim == nil {
				continue
			}
			for _, observed := range byClaim[v.PersistentVolumeClaim.ClaimName] {
				if hash := observed.hash(); !used[hash] && observed.consumes(pod) {
					used[hash], out.of[hash] = true, append(out.of[hash], one)
					r.lists.remove(hash)
				}
			}
		}
	})
	out.done = r.now()
	return out, err
}
