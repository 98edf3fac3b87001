package node

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const oneGroupUUID = "djh9yK-kdRJ-WGvL-Slde-Imz1-NhIY-fipqqe"

// groupsOnly answers LVM's reports for a host with these rows of vgs and no volumes. It fails the test if another
// program is run.
func groupsOnly(t *testing.T, groups ...string) *Engine {
	t.Helper()
	host := noPrograms(t)
	host.Unkillable = commandtest.Func(func(argv ...string) (string, error) {
		line := strings.Join(argv, " ")
		switch argv[0] {
		case "lvs":
			return `{"report":[{"lv":[]}]}`, nil
		case "vgs":
			var rows []string
			for _, g := range groups {
				_, name, selected := strings.Cut(line, `vg_name="`)
				if name, _, _ = strings.Cut(name, `"`); !selected || strings.Contains(g, `"vg_name":"`+name+`"`) {
					rows = append(rows, g)
				}
			}
			return `{"report":[{"vg":[` + strings.Join(rows, ",") + `]}]}`, nil
		}
		t.Fatalf("ran %s", argv)
		return "", nil
	})
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, host)
	require.NoError(t, err)
	return e
}

// A volume whose group was renamed is intact, so nobody is told to create the group or to delete the claim, not even if
// somebody has created an empty group of the former name.
func TestRenamedGroup(t *testing.T) {
	fast := strings.Replace(oneGroup, `"vg_name":"flexlvm"`, `"vg_name":"fast"`, 1)
	empty := strings.Replace(oneGroup, oneGroupUUID, "another", 1)
	spec := volume.Spec{Group: "flexlvm", GroupUUID: oneGroupUUID, Name: "pvc-1", Size: 64 * volume.MiB, Layout: volume.Linear, Kind: volume.Claim, Cluster: "c", Namespace: "shop"}
	reader := readerSpec()
	reader.GroupUUID = oneGroupUUID
	snapshot := spec
	snapshot.Kind, snapshot.CloneOf = volume.Snapshot, "source"
	clone := spec
	clone.CloneOf = "source"
	for name, groups := range map[string][]string{"renamed": {fast}, "renamed, and another has its former name": {fast, empty}} {
		for _, recorded := range []bool{false, true} {
			e := groupsOnly(t, groups...)
			if recorded {
				require.NoError(t, e.records.write(spec.Group, spec.Name, newRecord("uuid-1", sourceTags())))
			}
			_, _, findErr := e.findSnapshot(t.Context(), snapshot, e.now())
			if findErr == nil {
				_, findErr = e.takeSnapshot(t.Context(), SnapshotRequest{Spec: snapshot})
			}
			for call, err := range map[string]error{
				"mount":           e.Mount(t.Context(), spec, MountRequest{Target: t.TempDir()}),
				"mount of clone":  e.Mount(t.Context(), clone, MountRequest{Target: t.TempDir()}),
				"mount by reader": e.Mount(t.Context(), reader, MountRequest{Target: t.TempDir()}),
				"growth":          e.Expand(t.Context(), spec, volume.GiB),
				"snapshot":        findErr,
			} {
				require.ErrorIs(t, err, lvm.ErrNoGroup, "%s: %s", name, call)
				require.ErrorContains(t, err, "is on this node under the name fast, with its volumes; give it its name back: `vgrename "+oneGroupUUID+" flexlvm`", "%s: %s", name, call)
				for _, wrong := range []string{"vg create", "lost", "claim", "Delete the pod"} {
					require.NotContains(t, err.Error(), wrong, "%s: %s", name, call)
				}
			}
		}
	}
}

// A group whose UUID a PersistentVolume names has existed, so its disks may be late or hidden.
func TestMissingGroupThatHasExisted(t *testing.T) {
	e := groupsOnly(t)
	spec := volume.Spec{Group: "flexlvm", Name: "pvc-1", Size: 64 * volume.MiB, Layout: volume.Linear, Kind: volume.Claim, Cluster: "c", Namespace: "shop"}
	err := e.Expand(t.Context(), spec, volume.GiB)
	require.ErrorIs(t, err, lvm.ErrNoGroup)
	require.ErrorContains(t, err, "vg create", "it may never have existed")
	spec.GroupUUID = oneGroupUUID
	err = e.Expand(t.Context(), spec, volume.GiB)
	require.ErrorIs(t, err, lvm.ErrNoGroup)
	require.ErrorContains(t, err, "bring its disks back: `flexlvm doctor --group flexlvm`")
	require.NotContains(t, err.Error(), "vg create")
}
