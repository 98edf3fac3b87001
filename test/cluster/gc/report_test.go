//go:build cluster

package gc_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

// storage returns the daemon's report of its node.
func (b *bed) storage(t *testing.T) v1.NodeStorageStatus {
	t.Helper()
	object, err := b.dynamic.Resource(v1.GroupVersion.WithResource("nodestorages")).Get(t.Context(), node, metav1.GetOptions{})
	require.NoError(t, err)
	var out v1.NodeStorage
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &out))
	return out.Status
}

// poolOf returns a pool of a report.
func poolOf(t *testing.T, s v1.NodeStorageStatus, name string) v1.Pool {
	t.Helper()
	i := slices.IndexFunc(s.Pools, func(p v1.Pool) bool { return p.Name == name })
	require.NotEqual(t, -1, i, "no pool %s in %v", name, s.Pools)
	return s.Pools[i]
}

// condition waits for a condition of the node's report, and returns its message.
func (b *bed) condition(t *testing.T, kind string, want metav1.ConditionStatus, part string) string {
	t.Helper()
	message := ""
	await.Until(t, longest, func() string {
		c := meta.FindStatusCondition(b.storage(t).Conditions, kind)
		if c == nil {
			return "there is no condition " + kind
		}
		message = c.Message
		return await.Missing(c.Status == want && strings.Contains(message, part), "%s is %s: %s (%s); it should be %s and say %q", kind, c.Status, c.Reason, message, want, part)
	})
	return message
}

// evictionOf waits until the report lists a volume's eviction.
func (b *bed) evictionOf(t *testing.T, name string) v1.Eviction {
	t.Helper()
	var found v1.Eviction
	await.Until(t, longest, func() string {
		all := b.storage(t).Evictions
		i := slices.IndexFunc(all, func(e v1.Eviction) bool { return e.Name == name })
		if i < 0 {
			return fmt.Sprintf("the report does not tell of the eviction of %s: %v", name, all)
		}
		found = all[i]
		return ""
	})
	return found
}

// events returns an object's events as "reason: message".
func (b *bed) events(namespace, kind, name string) []string {
	list, err := b.client.CoreV1().Events(namespace).List(context.Background(), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name,
	})
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, e := range list.Items {
		out = append(out, e.Reason+": "+e.Message)
	}
	return out
}

// event waits for an event whose text contains all parts, and returns it.
func (b *bed) event(t *testing.T, namespace, kind, name string, parts ...string) string {
	t.Helper()
	found := ""
	await.Until(t, longest, func() string {
		events := b.events(namespace, kind, name)
		for _, e := range events {
			if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(e, p) }) {
				found = e
				return ""
			}
		}
		return fmt.Sprintf("%s %s has no event with %q; it has:\n%s", kind, name, parts, strings.Join(events, "\n"))
	})
	return found
}

// rounds returns how many of the daemon's rounds succeeded and failed. The daemon's metrics are
// available without an API server.
func (b *bed) rounds(t *testing.T) (good, failed int) {
	t.Helper()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return b.Dial(ctx, network, address)
		},
	}}
	var body []byte
	await.Until(t, longest, func() string { // the daemon may be too busy to answer within its own timeout
		response, err := client.Get("http://10.88.0.11:9809/metrics")
		if err == nil {
			defer response.Body.Close()
			body, err = io.ReadAll(response.Body)
		}
		return await.Missing(err == nil, "%v", err)
	})
	for lines := bufio.NewScanner(strings.NewReader(string(body))); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), `flexlvm_gc_rounds_total{result="`)
		if !ok {
			continue
		}
		result, value, _ := strings.Cut(rest, `"} `)
		var n int
		_, err := fmt.Sscan(value, &n)
		require.NoError(t, err, lines.Text())
		if result == "success" {
			good += n
		} else {
			failed += n
		}
	}
	return good, failed
}

// looksTwice wakes the daemon for a round, and for another when that one has ended: the second one has
// observed all that existed before.
func (b *bed) looksTwice(t *testing.T) {
	t.Helper()
	for range 2 {
		before, _ := b.rounds(t)
		b.onNode(t, "touch /var/lib/flexlvm/called")
		await.Until(t, longest, func() string {
			now, _ := b.rounds(t)
			return await.Missing(now > before, "the daemon does not look")
		})
	}
}

// moreRounds waits until that many more rounds have succeeded and failed.
func (b *bed) moreRounds(t *testing.T, good, failed int) {
	t.Helper()
	g, f := b.rounds(t)
	await.Until(t, longest, func() string {
		nowGood, nowFailed := b.rounds(t)
		return await.Missing(nowGood >= g+good && nowFailed >= f+failed, "of %d and %d rounds there were %d and %d", good, failed, nowGood-g, nowFailed-f)
	})
}
