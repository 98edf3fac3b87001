package main

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	commands "github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/doctor"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestChecksAreTheWorstFirst(t *testing.T) {
	got := checks([]doctor.Finding{
		{Level: doctor.OK, Check: "kernel", Detail: "6.1"}, {Level: doctor.Warn, Check: "xfs", Detail: "old"}, {Level: doctor.Fail, Check: "driver", Detail: "gone", Do: "install it"},
	})
	require.Equal(t, []flexlvmv1.Check{
		{Level: "FAIL", Check: "driver", Detail: "gone", Do: "install it"}, {Level: "WARN", Check: "xfs", Detail: "old"}, {Level: "OK", Check: "kernel", Detail: "6.1"},
	}, got)
}

// A host has two volume groups, a thin pool and no programs.
type host struct{}

func (host) Groups(context.Context) ([]lvm.VolumeGroup, error) {
	return []lvm.VolumeGroup{{Name: "fast", UUID: "u", Size: 100, Free: 90, MetadataSize: 100}, {Name: "slow", UUID: "v", Size: 100, Free: 90, MetadataSize: 100}}, nil
}

func (host) ThinPools(context.Context) ([]lvm.ThinPool, error) {
	return []lvm.ThinPool{{Group: "fast", GroupUUID: "u", Name: "thin"}}, nil
}
func (host) List(context.Context) ([]inventory.Volume, error) { return nil, nil }

func (host) Release() (string, error) { return "6.1.0", nil }
func (host) Root() bool               { return true }
func (host) OpenXFS() error           { return errors.New("not here") }
func (host) MapOwners() error         { return errors.New("not here") }

// What does not depend on the volume group is checked once, so that many groups do not use up the room of the report.
func TestEachGroupIsExaminedAndTheHostOnce(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	none := commands.New(filepath.Join(t.TempDir(), "none"), log)
	examined := func(groups ...volume.Group) map[string]int {
		found := map[string]int{}
		for _, f := range examineEach(t.Context(), func(group volume.Group) *doctor.Doctor {
			return doctor.New(doctor.Config{Group: group, NoDriver: true}, doctor.Host{Tools: none.Unkillable, Driver: none.Killable, Inventory: host{}, Kernel: host{}, Root: t.TempDir()})
		}, groups) {
			found[f.Check]++
		}
		return found
	}
	found := examined("fast", "slow")
	for _, check := range []string{"kernel", "thin pool fast/thin", "thin_check", "devices file", "group fast", "group slow", "group fast metadata", "group slow metadata"} {
		require.Equal(t, 1, found[check], "%s in %v", check, found)
	}
	for check, n := range found {
		require.Equal(t, 1, n, check)
	}
	require.NotContains(t, examined(), "thin_check", "a node without a group is healthy")
}

// The daemon's advice is not about the program `flexlvm` on the node, which is the driver that is missing.
func TestAdviceForAMissingDriver(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	none := commands.New(filepath.Join(t.TempDir(), "none"), log)
	engine, err := node.New(node.Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, none)
	require.NoError(t, err)
	for _, check := range examiner(engine, none, log, t.TempDir())(t.Context(), nil) {
		if check.Check == "driver" {
			require.Contains(t, check.Do, "DaemonSet flexlvm-installer")
			return
		}
	}
	t.Fatal("the driver is not checked")
}
