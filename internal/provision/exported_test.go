package provision

import (
	"testing"

	"github.com/flexlvm/flexlvm/internal/serve/servetest"
)

func TestExported(t *testing.T) {
	m := NewMetrics()
	m.library.PersistentVolumeClaimProvisionTotal.WithLabelValues("flexlvm", "").Inc()
	m.library.PersistentVolumeClaimProvisionFailedTotal.WithLabelValues("flexlvm", "").Inc()
	m.library.PersistentVolumeClaimProvisionDurationSeconds.WithLabelValues("flexlvm", "").Observe(1)
	servetest.RequireExported(t, "provisioner", m.Registry)
}
