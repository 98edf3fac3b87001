package gc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/gc"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// What PersistentVolumes may take of a pool of 100 GiB, of which a settled claim
// holds 1.
func TestPlanAllocatable(t *testing.T) {
	const all = 100 * volume.GiB
	extents := func(b volume.Bytes) func(*scene) { return func(s *scene) { s.group("flexlvm").Extent = b } }
	for name, tt := range map[string]struct {
		scene func(*scene)
		want  volume.Bytes
	}{
		"all of it":                  {func(*scene) {}, all},
		"promised, not made":         {func(s *scene) { s.claim("a", 10) }, all},
		"promised and made":          {func(s *scene) { s.claim("a", 10); s.volume("a", volume.Ready, 10) }, all},
		"being made":                 {func(s *scene) { s.claim("a", 10); s.volume("a", volume.Creating, 10) }, all},
		"others":                     {func(s *scene) { s.others(2, 30) }, all - 30*volume.GiB},
		"another cluster's":          {func(s *scene) { s.volume("a", volume.Ready, 10, func(v *node.Volume) { v.Cluster = "another" }) }, all - 10*volume.GiB},
		"an orphan":                  {func(s *scene) { s.volume("a", volume.Ready, 10) }, all - 10*volume.GiB},
		"retained":                   {func(s *scene) { s.volume("a", volume.Retained, 10) }, all - 10*volume.GiB},
		"retained, but wanted again": {func(s *scene) { s.claim("a", 10); s.volume("a", volume.Retained, 10) }, all},
		"released, kept": {func(s *scene) {
			s.claim("a", 10, phase(corev1.VolumeReleased), retain)
			s.volume("a", volume.Ready, 10)
		}, all},
		"about to be free":                {func(s *scene) { s.volume("doomed_a", volume.Doomed, 10) }, all},
		"may be evicted":                  {func(s *scene) { s.volume("a", unreferenced, 10) }, all},
		"may be evicted, but is young":    {func(s *scene) { s.volume("a", unreferenced, 10, releasedAgo(time.Second)) }, all - 10*volume.GiB},
		"may be evicted, but is in use":   {func(s *scene) { s.volume("a", unreferenced, 10, func(v *node.Volume) { v.Open = true }) }, all - 10*volume.GiB},
		"goes at once":                    {func(s *scene) { s.volume("a", unreferenced, 10, releasedAgo(0), immediate) }, all},
		"given up, its PV is still there": {func(s *scene) { s.claim("a", 10, phase(corev1.VolumeReleased)); s.volume("a", volume.Ready, 10) }, all - 10*volume.GiB},
		"its PV cannot be read":           {func(s *scene) { s.view.Unreadable = []string{"a"}; s.volume("a", volume.Ready, 10) }, all - 10*volume.GiB},
		"of a group replaced":             {func(s *scene) { s.claim("a", 10, otherGroup); s.volume("a", volume.Ready, 10) }, all - 10*volume.GiB},
		"holds more than its charge":      {func(s *scene) { s.claim("a", 10); s.volume("a", volume.Ready, 12) }, all - 2*volume.GiB},
		"is to grow":                      {func(s *scene) { s.claim("a", 12); s.volume("a", volume.Ready, 10) }, all},
		"named by two": {func(s *scene) {
			s.claim("a", 10)
			s.claim("b", 10, func(c *gc.Claim) { c.Volume = "a" })
			s.volume("a", volume.Ready, 10)
		}, all},
		"large extents": {func(s *scene) { s.claim("a", 10); s.volume("a", volume.Ready, 12); extents(3 * volume.GiB)(s) }, all},
		"blocked": {func(s *scene) {
			s.view.Claims = nil // the API server has come back empty
			s.volume("a", unreferenced, 10)
		}, all - 11*volume.GiB},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			tt.scene(s)
			require.Equal(t, tt.want.String(), s.plan().Pools[0].Allocatable.String())
		})
	}
}

func TestPlanClosed(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*node.Pool)
		want   string
	}{
		"open":              {func(*node.Pool) {}, ""},
		"a device is gone":  {func(p *node.Pool) { p.Missing = 1 }, "LVM cannot find 1 device of volume group flexlvm"},
		"metadata is full":  {func(p *node.Pool) { p.MetadataSize, p.MetadataFree = 100, 5 }, "95% full"},
		"metadata has room": {func(p *node.Pool) { p.MetadataSize, p.MetadataFree = 100, 6 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			tt.change(s.group("flexlvm"))
			closed := s.plan().Pools[0].Closed
			require.Equal(t, tt.want == "", closed == "", closed)
			require.Contains(t, closed, tt.want)
		})
	}
}
