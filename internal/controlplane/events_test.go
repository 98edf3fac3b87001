package controlplane

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestWithEvents(t *testing.T) {
	work, events := fake.NewClientset(), fake.NewClientset()
	client := WithEvents(work, events)
	_, err := client.CoreV1().Events("shop").Create(t.Context(), &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Len(t, work.Actions(), 1)
	require.Equal(t, "persistentvolumes", work.Actions()[0].GetResource().Resource)
	require.Len(t, events.Actions(), 1)
	require.Equal(t, "events", events.Actions()[0].GetResource().Resource)
}
