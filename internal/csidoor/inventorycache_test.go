package csidoor

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A clinic is a node service whose volumes' health is queried.
type clinic struct {
	*service
	engine *fakeEngine
}

func newClinic(volumes int) clinic {
	f := &fakeEngine{}
	for i := range volumes {
		f.inventory.Volumes = append(f.inventory.Volumes, inventory.Volume{Group: "flexlvm", Name: volume.Name(fmt.Sprintf("pvc-%d", i))})
	}
	return clinic{&service{engine: f, inventories: newInventoryCache(f, time.Now), now: time.Now}, f}
}

// ask queries the health of a volume.
func (c clinic) ask(ctx context.Context, i int) error {
	_, err := c.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: fmt.Sprintf("flexlvm/pvc-%d", i)})
	return err
}

// reports returns how often LVM was queried.
func (c clinic) reports() int { return len(c.engine.verbs()) }

// kubelet queries each volume of a node, and then the node's health.
func TestOneReportForManyVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClinic(500)
		for i := range 500 {
			require.NoError(t, c.ask(t.Context(), i))
		}
		_, err := c.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
		require.NoError(t, err)
		require.Equal(t, 1, c.reports())

		time.Sleep(inventoryLife)
		require.NoError(t, c.ask(t.Context(), 0))
		require.Equal(t, 1, c.reports())
		time.Sleep(time.Nanosecond)
		require.NoError(t, c.ask(t.Context(), 0))
		require.Equal(t, 2, c.reports(), "what is too old was answered")
	})
}

// A volume that is newer than the last report must not be reported as missing.
func TestReportForAYoungVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClinic(1)
		require.NoError(t, c.ask(t.Context(), 0))
		time.Sleep(time.Second)
		c.engine.inventory = newClinic(2).engine.inventory
		require.NoError(t, c.ask(t.Context(), 1))
		require.Equal(t, 2, c.reports())
		require.NoError(t, c.ask(t.Context(), 1))
		require.Equal(t, 2, c.reports(), "what is young is shared as well")
		time.Sleep(time.Second)
		require.Equal(t, codes.NotFound, codeOf(c.ask(t.Context(), 2)))
		require.Equal(t, 3, c.reports())
	})
}

// Calls that arrive while LVM reports wait for that report. A caller that gives up fails alone, and if
// it began the report, another caller begins a new one.
func TestCallsWhileLVMReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClinic(10)
		done := make(chan struct{})
		c.engine.do = func(ctx context.Context) error {
			select {
			case <-done:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		first, giveUp := context.WithCancel(t.Context())
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		results := make([]chan error, 10)
		for i := range results {
			ctx := t.Context()
			switch i {
			case 0:
				ctx = first
			case 1:
				ctx = short
			}
			results[i] = make(chan error, 1)
			go func() { results[i] <- c.ask(ctx, i) }()
			synctest.Wait()
		}
		require.Equal(t, 1, c.reports())
		require.ErrorIs(t, <-results[1], context.DeadlineExceeded)
		giveUp()
		require.ErrorIs(t, <-results[0], context.Canceled)
		synctest.Wait()
		require.Equal(t, 2, c.reports())
		close(done)
		for _, result := range results[2:] {
			require.NoError(t, <-result)
		}
		require.Equal(t, 2, c.reports())
	})
}

// A failure is returned and not cached.
func TestFailedReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClinic(1)
		require.NoError(t, c.ask(t.Context(), 0))
		time.Sleep(inventoryLife + 1)
		c.engine.do = func(context.Context) error { return errors.New("LVM is away") }
		require.EqualError(t, c.ask(t.Context(), 0), "LVM is away", "an older inventory must not hide it")
		c.engine.do = nil
		require.NoError(t, c.ask(t.Context(), 0))
	})
}
