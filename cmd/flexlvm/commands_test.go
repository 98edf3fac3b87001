package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/doctor"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// TestForPeople: every command of ours is taken for a person's, and no verb of
// kubelet's is.
func TestForPeople(t *testing.T) {
	root := newRoot()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		require.True(t, forPeople([]string{c.Name()}), c.Name())
		require.NotEmpty(t, c.Short, c.Name())
	}
	require.True(t, forPeople(nil))
	for _, verb := range []string{"init", "mount", "unmount", "expandfs", "getvolumename", "attach", "", "Volumes", "volumes "} {
		require.False(t, forPeople([]string{verb}), verb)
	}
}

type listOf struct {
	volumes []node.Volume
	err     error
}

func (l listOf) List(context.Context) ([]node.Volume, error) { return l.volumes, l.err }

func someVolumes() []node.Volume {
	at := time.Date(2026, 11, 20, 18, 0, 0, 0, time.UTC)
	return []node.Volume{
		{Group: "flexlvm", Name: "pvc-2", State: volume.Ready, Size: 2 * volume.GiB, Device: 2156 * volume.MiB, Namespace: "shop", Kind: volume.Claim, Created: at, LastUsed: at, Active: true, Open: true, Mounts: []string{"/a", "/b"}},
		{Group: "flexlvm", Name: "doomed_pvc-1", State: volume.Doomed, Size: 64 * volume.MiB, Device: 300 * volume.MiB, Namespace: "shop", Kind: volume.Claim, Created: at},
		{Group: "fast", Name: "pvc-2", Device: 300 * volume.MiB, Problem: "its tags make no sense"},
	}
}

func TestListVolumes(t *testing.T) {
	ctx := context.Background()
	all, err := listVolumes(ctx, listOf{volumes: someVolumes()}, "")
	require.NoError(t, err)
	require.Len(t, all, 3)
	fast, err := listVolumes(ctx, listOf{volumes: someVolumes()}, "fast")
	require.NoError(t, err)
	require.Len(t, fast, 1)
	none, err := listVolumes(ctx, listOf{}, "fast")
	require.NoError(t, err)
	require.NotNil(t, none, "an empty list is [] in JSON, not null")
	_, err = listVolumes(ctx, listOf{}, "a/b")
	require.ErrorContains(t, err, "--group")
	_, err = listVolumes(ctx, listOf{err: errors.New("locked")}, "")
	require.ErrorContains(t, err, "locked")
}

func TestPrintVolumes(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printVolumes(&out, someVolumes(), asTable))
	var cells [][]string
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		cells = append(cells, strings.Fields(line))
	}
	require.Equal(t, strings.Fields("GROUP NAME STATE SIZE DEVICE NAMESPACE KIND LAST-USED IN-USE NOTE"), cells[0])
	require.Equal(t, strings.Fields("fast pvc-2 - - 300MiB - - - no its tags make no sense"), cells[1])
	require.Equal(t, strings.Fields("flexlvm doomed_pvc-1 doomed 64MiB 300MiB shop claim - no -"), cells[2])
	require.Equal(t, strings.Fields("flexlvm pvc-2 ready 2GiB 2.10GiB shop claim 2026-11-20T18:00:00Z mounted -"), cells[3])

	out.Reset()
	require.NoError(t, printVolumes(&out, []node.Volume{}, asJSON))
	require.Equal(t, "[]\n", out.String())
}

func TestPick(t *testing.T) {
	v, err := pick(someVolumes(), "pvc-1")
	require.NoError(t, err)
	require.Equal(t, volume.Name("doomed_pvc-1"), v.Name)
	_, err = pick(someVolumes(), "pvc-2")
	require.ErrorContains(t, err, "flexlvm/pvc-2, fast/pvc-2; choose one with --group")
	_, err = pick(someVolumes(), "pvc-9")
	require.ErrorContains(t, err, "no volume of ours")
}

func TestPrintVolume(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printVolume(&out, someVolumes()[0], asTable))
	require.Contains(t, out.String(), "Size:           2147483648 (2 GiB)\n")
	require.Contains(t, out.String(), "Mounted on:     /a\n                /b\n")
	require.Contains(t, out.String(), "Note:           -\n")
}

func TestPrintFindings(t *testing.T) {
	findings := []doctor.Finding{
		{Level: doctor.OK, Check: "kernel", Detail: "Linux 6.1.0"},
		{Level: doctor.Fail, Check: "xfs", Detail: "the kernel has no XFS", Do: "install it"},
	}
	var out bytes.Buffer
	require.ErrorIs(t, printFindings(&out, findings, asTable), errUnfit)
	require.Equal(t, "OK    kernel: Linux 6.1.0\nFAIL  xfs: the kernel has no XFS\n      → install it\n", out.String())
	out.Reset()
	require.NoError(t, printFindings(&out, findings[:1], asJSON))
	require.JSONEq(t, `{"level":"OK","findings":[{"level":"OK","check":"kernel","detail":"Linux 6.1.0"}]}`, out.String())
}

func TestParseSize(t *testing.T) {
	for s, want := range map[string]volume.Bytes{
		"16777216": 16 * volume.MiB, "16MiB": 16 * volume.MiB, "16Mi": 16 * volume.MiB, "16M": 16 * volume.MiB,
		"16m": 16 * volume.MiB, "1GiB": volume.GiB, "2048k": 2 * volume.MiB, "7b": 7, "0": 0,
	} {
		got, err := parseSize("--x", s)
		require.NoError(t, err, s)
		require.Equal(t, want, got, s)
	}
	for _, s := range []string{"", "M", "-1M", "1.5M", "16MMB", "16 M", "16X", "99999999999999999999", "9999999999999GiB"} {
		_, err := parseSize("--x", s)
		require.ErrorContains(t, err, "--x", s)
	}
}

func TestShellLine(t *testing.T) {
	c := command.Command{Name: "vgcreate", Args: []string{"--name", "it's", "/dev/sdb", ""}}
	require.Equal(t, `vgcreate --name 'it'\''s' /dev/sdb ''`, shellLine(c))
}
