package provision

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/dataset"
	"github.com/flexlvm/flexlvm/internal/serve/servetest"
)

func TestExported(t *testing.T) {
	m := NewMetrics()
	m.library.PersistentVolumeClaimProvisionTotal.WithLabelValues("flexlvm", "").Inc()
	m.library.PersistentVolumeClaimProvisionFailedTotal.WithLabelValues("flexlvm", "").Inc()
	m.library.PersistentVolumeClaimProvisionDurationSeconds.WithLabelValues("flexlvm", "").Observe(1)
	m.warned("flexlvm", waitsRefused)
	m.controllerFailing("datasets").Set(1)
	m.controllerFailing("snapshots").Set(1)
	// The dataset controller adds its metrics in the same process.
	shown := dataset.NewMetrics()
	shown.Show(types.NamespacedName{Namespace: "team", Name: "images"}, []flexlvmv1.VolumeStatus{{ID: "train", Nodes: []flexlvmv1.ReplicaStatus{{
		Node: "node-1", State: flexlvmv1.ReplicaStreaming, Progress: &flexlvmv1.Progress{}, TimeToReady: &metav1.Duration{},
	}}}})
	m.Registry.MustRegister(shown)
	servetest.RequireExported(t, "provisioner", m.Registry)
}
