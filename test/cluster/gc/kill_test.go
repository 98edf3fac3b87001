//go:build cluster

package gc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/test/await"
)

// testKilledAgainAndAgain: two daemons alternately release, evict, wipe and remove volumes, and are
// killed while they do so.
func (b *bed) testKilledAgainAndAgain(t *testing.T, strangers map[string]string) {
	rounds := 6 // for each of three classes and each of two ways of killing
	if inFull() {
		rounds = 10
	}
	s := b.space(t, "killed")
	b.secondDaemon(t)
	var claims []string
	for i := range rounds {
		claims = append(claims, fmt.Sprintf("c%d", i))
	}
	for i, name := range claims {
		s.claim([]string{lazy, wiped, gone}[i%3], name)
	}
	s.claim(lazy, "kept")
	s.pod("kept", "kept")
	s.pod("one", claims[:rounds/2]...)
	s.pod("two", claims[rounds/2:]...)
	s.running("kept", "one", "two")
	sum := s.sums("kept")
	s.end("one", "two")

	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	b.say(t, "%d volumes wait for their end; the seed is %d", rounds, seed)
	kills := 0
	for i, claim := range claims {
		b.onNode(t, "until "+daemonPID+" >/dev/null; do sleep 0.2; done") // kubelet may be slow to restart them
		s.deleteClaims(claim)
		time.Sleep(time.Duration(random.Int64N(int64(3 * time.Second))))
		script := `for p in $(` + daemonPID + `); do kill -9 $p && echo $p || true; done`
		if i%2 == 1 {
			script = `p=$(` + daemonPID + ` | head -n 1); [ -z "$p" ] || { kill -9 $p && echo $p || true; }`
		}
		kills += strings.Count(b.onNode(t, script), "\n")
	}
	killed := time.Now()
	await.Until(t, longest, func() string { return b.unexplained(t, strangers) })
	b.say(t, "after %d kills all was in order %.1f s after the last", kills, time.Since(killed).Seconds())
	require.GreaterOrEqual(t, kills, rounds/2)
	require.Equal(t, sum, s.sums("kept"))
	b.untouched(t, strangers)
}

// secondDaemon runs another daemon on the same node. It waits for the lock, which it gets when the
// first daemon has been killed.
func (b *bed) secondDaemon(t *testing.T) {
	t.Helper()
	const name = daemon + "-second"
	daemons := b.client.AppsV1().DaemonSets(system)
	set, err := daemons.Get(t.Context(), daemon, metav1.GetOptions{})
	require.NoError(t, err)
	labels := map[string]string{"app.kubernetes.io/name": name}
	set.ObjectMeta = metav1.ObjectMeta{Name: name, Namespace: system}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	set.Spec.Template.Labels = labels
	// They share the node's network, so the second one uses other ports, also for its probes.
	pod, err := json.Marshal(set.Spec.Template.Spec)
	require.NoError(t, err)
	set.Spec.Template.Spec = corev1.PodSpec{}
	require.NoError(t, json.Unmarshal([]byte(strings.NewReplacer("9809", "9811", "9810", "9812").Replace(string(pod))), &set.Spec.Template.Spec))
	_, err = daemons.Create(t.Context(), set, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, daemons.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}))
	})
	b.kubectl(t, "-n", system, "wait", "pod", "-l", "app.kubernetes.io/name="+name, "--for=create", "--timeout=4m")
	b.kubectl(t, "-n", system, "wait", "pod", "-l", "app.kubernetes.io/name="+name, "--for=jsonpath={.status.phase}=Running", "--timeout=4m")
}

// testDeletedAtEveryMoment: claims and pods are deleted while they are created, bound and first
// mounted. Nothing is left of them.
func (b *bed) testDeletedAtEveryMoment(t *testing.T, strangers map[string]string) {
	n, lanes := 8, 4
	if inFull() {
		n = 12
	}
	s := b.space(t, "moments")
	// The moments are spread over the time from a claim's creation to its running pod.
	began := time.Now()
	s.claim(gone, "whole")
	s.pod("whole", "whole")
	s.running("whole")
	whole := time.Since(began)
	b.say(t, "%.1f s from a claim to its pod that runs", whole.Seconds())
	s.end("whole")
	s.deleteClaims("whole")
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			for i := lane; i < n; i += lanes {
				assert.NoError(t, s.comeAndGo(t.Context(), fmt.Sprintf("c%d", i), whole*time.Duration(i)/time.Duration(n-1), i%2 == 0))
			}
		})
	}
	all.Wait()
	deleted := time.Now()
	left := func() string {
		pods, err := s.client.CoreV1().Pods(s.name).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		claims, err := s.client.CoreV1().PersistentVolumeClaims(s.name).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		if len(pods.Items)+len(claims.Items) > 0 {
			return fmt.Sprintf("%d pods and %d claims are left", len(pods.Items), len(claims.Items))
		}
		return b.unexplained(t, strangers)
	}
	await.Until(t, 3*longest, left) // a busy node releases one volume per round
	b.say(t, "nothing was left of %d claims %.1f s after the last was deleted", n, time.Since(deleted).Seconds())
	b.moreRounds(t, 3, 0)
	require.Empty(t, left(), "a mount that is late makes nothing")
	made := b.onNode(t, "ls /var/lib/flexlvm/volumes/"+wide+" | wc -l")
	b.say(t, "%s volumes of this group are on record", strings.TrimSpace(made))
}

// comeAndGo creates a claim and its pod and deletes both after a while.
func (s *space) comeAndGo(ctx context.Context, name string, after time.Duration, force bool) error {
	if err := s.makeClaim(ctx, gone, name, "64Mi"); err != nil {
		return err
	}
	if err := s.makePod(ctx, name, name); err != nil {
		return err
	}
	time.Sleep(after)
	options := metav1.DeleteOptions{}
	if force {
		options.GracePeriodSeconds = ptr(int64(0))
	}
	if err := s.client.CoreV1().Pods(s.name).Delete(ctx, name, options); err != nil {
		return err
	}
	return s.client.CoreV1().PersistentVolumeClaims(s.name).Delete(ctx, name, metav1.DeleteOptions{})
}
