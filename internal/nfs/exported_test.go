package nfs

import (
	"testing"

	"github.com/flexlvm/flexlvm/internal/serve/servetest"
)

func TestExported(t *testing.T) {
	m := NewMetrics()
	m.library.PersistentVolumeClaimProvisionTotal.WithLabelValues("flexlvm-nfs", "").Inc()
	m.library.PersistentVolumeClaimProvisionFailedTotal.WithLabelValues("flexlvm-nfs", "").Inc()
	m.library.PersistentVolumeClaimProvisionDurationSeconds.WithLabelValues("flexlvm-nfs", "").Observe(1)
	m.library.PersistentVolumeDeleteTotal.WithLabelValues("flexlvm-nfs").Inc()
	m.library.PersistentVolumeDeleteFailedTotal.WithLabelValues("flexlvm-nfs").Inc()
	m.library.PersistentVolumeDeleteDurationSeconds.WithLabelValues("flexlvm-nfs").Observe(1)
	m.putOff("flexlvm-nfs")
	m.watch(&Provisioner{gates: map[string]*gate{"nfs.example.org:/srv": {}}})
	servetest.RequireExported(t, "nfs-provisioner", m.Registry)
}
