package nodeagent

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// never stands for an interval of 0 in the tables, whose zero value means a week.
const never = time.Duration(-1)

const week = 7 * 24 * time.Hour

// monday is an arbitrary instant.
var monday = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

func thinVolumes(n int, change ...func(*inventory.Volume)) (in inventory.Inventory) {
	for i := range n {
		v := inventory.Volume{
			Group: "flexlvm", Name: volume.Name(fmt.Sprintf("v%d", i)), UUID: fmt.Sprintf("uuid-%d", i), Cluster: "ours",
			State: volume.Ready, Shape: volume.Shape{Layout: volume.Thin, ThinPool: "pool"}, Mounts: []string{"/pods/a"}, Created: monday.Add(-100 * week),
		}
		for _, c := range change {
			c(&v)
		}
		in.Volumes = append(in.Volumes, v)
	}
	return in
}

// Each volume is trimmed once per interval, and the trims are spread over it, from the first day on.
func TestTrimsAreSpread(t *testing.T) {
	const volumes, weeks = 700, 4
	in := thinVolumes(volumes)
	trimming := Trimming{Interval: week}
	times := make([]int, volumes)
	require.Empty(t, trimming.dueTrims(in, nil, "ours", monday, monday), "none is, when the records begin")
	for hour := range weeks * 7 * 24 {
		now := monday.Add(time.Duration(hour+1) * time.Hour)
		due := trimming.dueTrims(in, nil, "ours", monday, now)
		require.Less(t, len(due), volumes/168*4, "hour %d", hour)
		for _, v := range due {
			var i int
			_, err := fmt.Sscanf(v.UUID, "uuid-%d", &i)
			require.NoError(t, err)
			in.Volumes[i].LastTrimmed = now
			times[i]++
		}
	}
	for i, n := range times {
		require.Equal(t, weeks, n, "volume %d", i)
	}
}

// After three days without a daemon, the volumes that have become due are trimmed and no others; after a month, all
// are, once each.
func TestTrimsAfterADaemonWasAway(t *testing.T) {
	in := thinVolumes(700, func(v *inventory.Volume) { v.LastTrimmed = monday })
	trimming := Trimming{Interval: week}
	require.Empty(t, trimming.dueTrims(in, nil, "ours", monday.Add(-week), monday))
	require.InDelta(t, 300, len(trimming.dueTrims(in, nil, "ours", monday.Add(-week), monday.Add(3*24*time.Hour))), 60)
	require.Len(t, trimming.dueTrims(in, nil, "ours", monday.Add(-week), monday.Add(4*week)), 700)
}

func TestWhatIsTrimmed(t *testing.T) {
	tests := map[string]struct {
		change   func(*inventory.Volume)
		trimming Trimming
		due      bool
		class    string // what the PersistentVolume says
	}{
		"thin":                                  {func(*inventory.Volume) {}, Trimming{}, true, ""},
		"thick":                                 {func(v *inventory.Volume) { v.Shape = volume.Shape{Layout: volume.Linear} }, Trimming{}, false, ""},
		"thick, on request":                     {func(v *inventory.Volume) { v.Shape = volume.Shape{Layout: volume.Raid1} }, Trimming{Thick: true}, true, ""},
		"never":                                 {func(*inventory.Volume) {}, Trimming{Interval: never}, false, ""},
		"not mounted":                           {func(v *inventory.Volume) { v.Mounts = nil }, Trimming{}, false, ""},
		"encrypted":                             {func(v *inventory.Volume) { v.Encrypted = true }, Trimming{Thick: true}, false, ""},
		"a device, its class says daily":        {func(v *inventory.Volume) { v.FSType = volume.Raw }, Trimming{}, false, "daily"},
		"encrypted, its class says daily":       {func(v *inventory.Volume) { v.Encrypted = true }, Trimming{}, false, "daily"},
		"another cluster's":                     {func(v *inventory.Volume) { v.Cluster = "theirs" }, Trimming{}, false, ""},
		"given up":                              {func(v *inventory.Volume) { v.State = volume.Unreferenced }, Trimming{}, false, ""},
		"retained":                              {func(v *inventory.Volume) { v.State = volume.Retained }, Trimming{}, false, ""},
		"half made":                             {func(v *inventory.Volume) { v.State = volume.Creating }, Trimming{}, false, ""},
		"being removed":                         {func(v *inventory.Volume) { v.State = volume.Doomed }, Trimming{}, false, ""},
		"with invalid tags":                     {func(v *inventory.Volume) { v.Problem = "no size" }, Trimming{}, false, ""},
		"of some other layout":                  {func(v *inventory.Volume) { v.Shape = volume.Shape{} }, Trimming{}, false, ""},
		"trimmed just now":                      {func(v *inventory.Volume) { v.LastTrimmed = monday.Add(-time.Second) }, Trimming{}, false, ""},
		"trimmed two weeks ago":                 {func(v *inventory.Volume) { v.LastTrimmed = monday.Add(-2 * week) }, Trimming{}, true, ""},
		"new":                                   {func(v *inventory.Volume) { v.Created = monday.Add(-time.Second) }, Trimming{}, false, ""},
		"trimmed in the future":                 {func(v *inventory.Volume) { v.LastTrimmed = monday.AddDate(70, 0, 0) }, Trimming{}, true, ""},
		"made in the future":                    {func(v *inventory.Volume) { v.Created = monday.AddDate(70, 0, 0) }, Trimming{}, true, ""},
		"thick, its class says weekly":          {func(v *inventory.Volume) { v.Shape = volume.Shape{Layout: volume.Linear} }, Trimming{}, true, "weekly"},
		"thick, its class leaves it":            {func(v *inventory.Volume) { v.Shape = volume.Shape{Layout: volume.Linear} }, Trimming{}, false, "auto"},
		"its class says never":                  {func(*inventory.Volume) {}, Trimming{Thick: true}, false, "never"},
		"its class says nothing known":          {func(*inventory.Volume) {}, Trimming{Thick: true}, false, "hourly"},
		"its class says weekly, the node never": {func(*inventory.Volume) {}, Trimming{Interval: never}, false, "weekly"},
		"its class says daily":                  {func(v *inventory.Volume) { v.LastTrimmed = monday.Add(-25 * time.Hour) }, Trimming{Interval: 8 * week}, true, "daily"},
		"its class says weekly, the node daily": {func(v *inventory.Volume) { v.LastTrimmed = monday.Add(-2 * time.Hour) }, Trimming{Interval: time.Hour}, false, "weekly"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			switch tt.trimming.Interval {
			case 0:
				tt.trimming.Interval = week
			case never:
				tt.trimming.Interval = 0
			}
			in := thinVolumes(1, tt.change)
			due := tt.trimming.dueTrims(in, map[eviction.Key]string{eviction.KeyOf(&in.Volumes[0]): tt.class}, "ours", monday.Add(-2*week), monday)
			require.Equal(t, tt.due, len(due) == 1)
		})
	}
}

// The most overdue volume comes first.
func TestOrderOfTrims(t *testing.T) {
	in := thinVolumes(3)
	for i, weeks := range []time.Duration{3, 5, 4} {
		in.Volumes[i].LastTrimmed = monday.Add(-weeks * week)
	}
	var names []string
	for _, v := range (Trimming{Interval: week}).dueTrims(in, nil, "ours", monday.Add(-20*week), monday) {
		names = append(names, string(v.Name))
	}
	require.Equal(t, []string{"v1", "v2", "v0"}, names)
}

// A trim annotation without effect is reported, with the reason.
func TestWhyAVolumeIsNotTrimmed(t *testing.T) {
	for says, v := range map[string]persistentvolume.Volume{
		`flexlvm.io/trim "daily": does nothing for volumeMode Block`:    {Trim: "daily", FSType: volume.Raw},
		`flexlvm.io/trim "daily": does nothing for an encrypted volume`: {Trim: "daily", Encrypted: true},
		`flexlvm.io/trim "hourly": `:                                    {Trim: "hourly"},
	} {
		require.ErrorContains(t, notTrimmed(&v), says)
	}
	for _, v := range []persistentvolume.Volume{{Trim: "daily"}, {Encrypted: true}, {Trim: "never", Encrypted: true}} {
		require.NoError(t, notTrimmed(&v))
	}
}
