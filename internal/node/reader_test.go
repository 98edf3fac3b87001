package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func readerSpec() volume.Spec {
	return volume.Spec{
		Group: "flexlvm", Name: "ds-0123456789abcdef", Size: 64 * volume.MiB, Layout: volume.Linear,
		Kind: volume.Dataset, ReadOnly: true, Cluster: "c", Namespace: "team",
	}
}

func replicaTags() volume.Tags {
	return volume.Tags{State: volume.Ready, FS: sourceFS, Size: 64 * volume.MiB, Namespace: "team", Cluster: "c", Kind: volume.Dataset}
}

// oneGroup is a row of the output of vgs in LVM 2.03.16.
const oneGroup = `{"vg_name":"flexlvm", "vg_uuid":"djh9yK-kdRJ-WGvL-Slde-Imz1-NhIY-fipqqe", "vg_size":"3200253952", "vg_free":"2327838720", "vg_extent_size":"4194304", "vg_mda_size":"17821696", "vg_mda_free":"8908288", "vg_mda_used_count":"1", "lv_count":"3", "pv_count":"1", "vg_missing_pv_count":"0", "vg_exported":""}`

// reports answers LVM's report commands for a host without volumes, and fails the test if another program is
// run.
func reports(t *testing.T, groups string) command.Programs {
	host := noPrograms(t)
	host.Unkillable = commandtest.Func(func(argv ...string) (string, error) {
		out := map[string]string{"lvs": `{"report":[{"lv":[]}]}`, "vgs": `{"report":[{"vg":[` + groups + `]}]}`}[argv[0]]
		if out == "" {
			t.Fatalf("a reader ran %s", argv)
		}
		return out, nil
	})
	return host
}

// If the node has no replica, a reader creates none, even if the node once had one.
func TestAReaderMakesNothing(t *testing.T) {
	for _, groups := range []string{"", oneGroup} {
		e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, reports(t, groups))
		require.NoError(t, err)
		s := readerSpec()
		target := t.TempDir()
		for _, recorded := range []bool{false, true} {
			if recorded {
				require.NoError(t, e.records.write(s.Group, s.Name, newRecord("some-uuid", replicaTags())))
			}
			err = e.Mount(t.Context(), s, MountRequest{Target: target})
			require.ErrorIs(t, err, ErrNoReplica, "groups %q, on record: %t", groups, recorded)
			require.ErrorContains(t, err, "this node has none of dataset flexlvm/ds-0123456789abcdef")
			require.ErrorContains(t, err, "Delete the pod")
			require.NotContains(t, err.Error(), "an empty volume", "that is for whoever fills it")
		}
	}
}

func TestAReaderGrowsNothing(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	require.NoError(t, e.Expand(t.Context(), readerSpec(), volume.TiB))
}

func TestAdmitReaders(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*volume.Spec, *volume.Tags)
		err    error
		says   string
	}{
		"ready":           {func(*volume.Spec, *volume.Tags) {}, nil, ""},
		"larger by now":   {func(_ *volume.Spec, t *volume.Tags) { t.Size *= 2 }, nil, ""},
		"smaller":         {func(_ *volume.Spec, t *volume.Tags) { t.Size /= 2 }, nil, ""},
		"smaller, writes": {func(s *volume.Spec, t *volume.Tags) { t.Size /= 2; s.ReadOnly = false }, ErrRefused, "holds only"},
		"released":        {func(_ *volume.Spec, t *volume.Tags) { t.State = volume.Unreferenced }, ErrNoReplica, "being taken back"},
		"doomed":          {func(_ *volume.Spec, t *volume.Tags) { t.State = volume.Doomed }, ErrNoReplica, "being taken back"},
		"retained":        {func(_ *volume.Spec, t *volume.Tags) { t.State = volume.Retained }, ErrRefused, "is retained"},
		"another tenant":  {func(s *volume.Spec, _ *volume.Tags) { s.Namespace = "thief" }, ErrRefused, `belongs to namespace "team"`},
		"another cluster": {func(s *volume.Spec, _ *volume.Tags) { s.Cluster = "d" }, ErrRefused, "was created for cluster"},
		"a claim's":       {func(_ *volume.Spec, t *volume.Tags) { t.Kind = volume.Claim }, ErrRefused, `is of kind "claim"`},
	} {
		s, tags := readerSpec(), replicaTags()
		c.change(&s, &tags)
		err := admit(s, tags, "")
		if c.err == nil {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, c.err, name)
		require.ErrorContains(t, err, c.says, name)
	}
}

// A volume that was never handed out holds no data yet, and the next call of its loader may format it.
func TestAReaderDoesNotTakeWhatIsBeingMade(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	creating := replicaTags()
	creating.State = volume.Creating
	lv := lvm.LogicalVolume{Group: "flexlvm", Name: "ds-0123456789abcdef", UUID: "u"}
	_, err = e.replicaIn(t.Context(), readerSpec(), lv, creating)
	require.ErrorIs(t, err, ErrNoReplica)
	require.ErrorContains(t, err, "it is being made")
	known, err := e.records.exists("flexlvm", "ds-0123456789abcdef")
	require.NoError(t, err)
	require.False(t, known)
}
