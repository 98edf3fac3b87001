package dataset

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// manyPods gives pods page by page, and all at once to whoever names no limit.
type manyPods struct {
	client.Reader
	pods    []corev1.Pod
	largest int // page
	breaks  int // the page that cannot be had
}

func (m *manyPods) List(_ context.Context, list client.ObjectList, o ...client.ListOption) error {
	options := (&client.ListOptions{}).ApplyOptions(o)
	from, page := 0, list.(*corev1.PodList)
	if options.Continue != "" {
		from, _ = strconv.Atoi(options.Continue)
	}
	to := len(m.pods)
	if options.Limit > 0 && from+int(options.Limit) < to {
		to = from + int(options.Limit)
		page.Continue = strconv.Itoa(to)
	}
	if m.breaks > 0 && to/podPage >= m.breaks {
		return errChanged
	}
	page.Items = m.pods[from:to]
	m.largest = max(m.largest, to-from)
	return nil
}

// A namespace with many pods is read by pages, and none of its pods is missed.
func TestConsumersAreListedByPages(t *testing.T) {
	s := newWritable(t)
	s.completed(0)
	many := &manyPods{}
	for i := range 2*podPage + 1 {
		many.pods = append(many.pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("p-%d", i)}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "v-a-0"}},
		}}}})
	}
	r := &reconciler{live: many}
	seen := 0
	require.NoError(t, r.consumers(t.Context(), s.Observed, func(*corev1.Pod) { seen++ }))
	require.Len(t, many.pods, seen)
	require.Equal(t, podPage, many.largest)
	many.breaks = 2
	require.ErrorIs(t, r.consumers(t.Context(), s.Observed, func(*corev1.Pod) {}), errChanged, "what is not known is no answer")
}
