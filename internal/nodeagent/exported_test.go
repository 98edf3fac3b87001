package nodeagent

import (
	"testing"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/serve"
	"github.com/flexlvm/flexlvm/internal/serve/servetest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestExported(t *testing.T) {
	registry := serve.NewRegistry()
	m := NewMetrics(registry)
	f := foundPools(
		inventory.Pool{Name: "flexlvm", Size: volume.GiB},
		inventory.Pool{Name: "flexlvm/thinpool", Size: volume.GiB, Thin: &inventory.ThinPool{Known: true, Metadata: 100}},
	)
	f.inventory.Volumes = []inventory.Volume{{Group: "flexlvm", Shape: volume.Shape{Layout: volume.Thin, ThinPool: "thinpool"}, LastTrimmed: time.Unix(1, 0)}}
	m.round(f, nil, nil, time.Second)
	m.setSizes("/srv/flexlvm", 2, 1)
	m.CommandDone("lvm", time.Second, nil)
	servetest.RequireExported(t, "gc", registry)
}
