package node

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func snapshotSpec() volume.Spec {
	s := cloneSpec()
	s.Name, s.Kind = "snap", volume.Snapshot
	return s
}

func snapshotTags() volume.Tags {
	t := sourceTags()
	t.Kind = volume.Snapshot
	return t
}

// stillWanted is for a caller that has not given the volume up.
func stillWanted(context.Context) error { return nil }

// A snapshot is never mounted, and only created by MakeSnapshot, whatever the call.
func TestASnapshotIsNeverMounted(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	require.ErrorContains(t, e.Mount(t.Context(), snapshotSpec(), MountRequest{Target: t.TempDir(), ReadOnly: true}), "is a snapshot, which is never mounted")
	require.ErrorContains(t, e.CreateCloneAhead(t.Context(), snapshotSpec()), "is no snapshot")
	require.ErrorContains(t, admit(snapshotSpec(), snapshotTags(), ""), "is a snapshot, which is never mounted")
	claim := snapshotSpec()
	claim.Kind, claim.CloneOf = volume.Claim, ""
	require.ErrorContains(t, admit(claim, snapshotTags(), ""), "is a snapshot, which is never mounted")

	_, err = e.MakeSnapshot(t.Context(), SnapshotRequest{Spec: cloneSpec()}, stillWanted)
	require.ErrorContains(t, err, `kind "claim": is not snapshot`)
	nobody := snapshotSpec()
	nobody.Namespace = ""
	_, err = e.MakeSnapshot(t.Context(), SnapshotRequest{Spec: nobody}, stillWanted)
	require.ErrorContains(t, err, "the namespace is missing")
	of := snapshotSpec()
	of.CloneOf = ""
	_, err = e.MakeSnapshot(t.Context(), SnapshotRequest{Spec: of}, stillWanted)
	require.ErrorContains(t, err, "name the volume that it is taken of")
}

// A snapshot that could not be taken and was given up is taken when the CSI snapshotter requests it again
// under its name, but not for a call that began before that.
func TestASnapshotThatWasGivenUpIsTakenAgain(t *testing.T) {
	now := time.Date(2026, 11, 25, 3, 0, 0, 0, time.UTC)
	host := noPrograms(t)
	host.Unkillable = commandtest.Func((&fakeGroup{device: t.TempDir()}).run)
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir(), Now: func() time.Time { return now }}, host)
	require.NoError(t, err)
	spec := snapshotSpec()
	ref := Ref{Group: spec.Group, Name: spec.Name, Cluster: spec.Cluster, Kind: spec.Kind}
	for range 2 {
		_, err = e.MakeSnapshot(t.Context(), SnapshotRequest{Spec: spec}, stillWanted)
		require.ErrorContains(t, err, "the source volume does not exist")
		began := e.givenUpAt(spec)
		now = now.Add(time.Second)
		require.NoError(t, e.Release(t.Context(), ref, volume.Unreferenced, volume.Disposal{}))
		_, err = e.makeSnapshot(t.Context(), SnapshotRequest{Spec: spec}, began)
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorContains(t, err, "was given up while this call waited")
	}
	ref.Kind = volume.Claim
	require.NoError(t, e.Release(t.Context(), ref, volume.Unreferenced, volume.Disposal{}))
	_, err = e.MakeSnapshot(t.Context(), SnapshotRequest{Spec: spec}, stillWanted)
	require.ErrorContains(t, err, "is not created again", "a claim's volume had that name")
}

func TestIsSnapshot(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*volume.Spec, *volume.Tags)
		says   string // empty: it is the snapshot
	}{
		"whole":               {func(*volume.Spec, *volume.Tags) {}, ""},
		"half":                {func(_ *volume.Spec, v *volume.Tags) { v.State = volume.Creating }, ""},
		"of what was larger":  {func(_ *volume.Spec, v *volume.Tags) { v.Size *= 2 }, ""},
		"of what was smaller": {func(s *volume.Spec, _ *volume.Tags) { s.Size *= 2 }, ""},
		"deleted":             {func(_ *volume.Spec, v *volume.Tags) { v.State = volume.Unreferenced }, "it was deleted"},
		"being removed":       {func(_ *volume.Spec, v *volume.Tags) { v.State = volume.Doomed }, "it was deleted"},
		"a claim's volume":    {func(_ *volume.Spec, v *volume.Tags) { v.Kind = volume.Claim }, `is of kind "claim"`},
		"another tenant's":    {func(_ *volume.Spec, v *volume.Tags) { v.Namespace = "db" }, `belongs to namespace "db", not to "shop"`},
		"another cluster's":   {func(_ *volume.Spec, v *volume.Tags) { v.Cluster = "d" }, `was created for cluster "d"`},
		"not encrypted":       {func(s *volume.Spec, _ *volume.Tags) { s.Encrypted = true }, "is not encrypted"},
		"in another group":    {func(s *volume.Spec, _ *volume.Tags) { s.GroupUUID = "other" }, "is another one"},
	} {
		s, v := snapshotSpec(), snapshotTags()
		c.change(&s, &v)
		err := isSnapshot(s, v, "uuid")
		if c.says == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, ErrRefused, name)
		require.ErrorContains(t, err, c.says, name)
	}
}
