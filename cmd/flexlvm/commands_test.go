package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/cgroup"
	"github.com/flexlvm/flexlvm/internal/doctor"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// TestForPeople checks that every flexlvm command is recognized as a person's, and no verb of kubelet
// is.
func TestForPeople(t *testing.T) {
	root := newRoot()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		require.True(t, isOperatorCommand([]string{c.Name()}), c.Name())
		require.NotEmpty(t, c.Short, c.Name())
	}
	for _, args := range [][]string{nil, {"-h"}, {"--version"}, {"-v", "doctor"}, {"--verbose", "volumes", "list"}} {
		require.True(t, isOperatorCommand(args), args)
	}
	for _, verb := range []string{"init", "mount", "unmount", "expandfs", "getvolumename", "attach", "", "Volumes", "volumes "} {
		require.False(t, isOperatorCommand([]string{verb}), verb)
	}
}

// LVM runs outside of the control group of kubelet's service, whose restart would kill it. Without cgroup v2, LVM
// runs in kubelet's control group.
func TestProgramsHaveTheirOwnGroup(t *testing.T) {
	root := t.TempDir()
	log, _ := logtest.NewNullLogger()
	require.NotNil(t, programs(root, log).Unkillable)
	require.NoDirExists(t, filepath.Join(root, cgroup.HostPrograms))
	require.NoError(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o600))
	require.NotNil(t, programs(root, log).Unkillable)
	require.DirExists(t, filepath.Join(root, cgroup.HostPrograms))
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
	argv := []string{"vgcreate", "--name", "it's", "/dev/sdb", ""}
	require.Equal(t, `vgcreate --name 'it'\''s' /dev/sdb ''`, shellLine(argv))
}

// Without pvremove the devices would not be blank, and the repeated command would refuse them.
func TestStartOver(t *testing.T) {
	require.Equal(t, "vgremove fast && pvremove /dev/sdb '/dev/disk/by-id/a b'", startOver("fast", []string{"/dev/sdb", "/dev/disk/by-id/a b"}))
}

func TestThinPoolOfANewGroup(t *testing.T) {
	o := vgCreateOptions{thin: true, thinPool: "thinpool"}
	p, err := o.pool("flexlvm")
	require.NoError(t, err)
	require.Equal(t, lvm.NewThinPool{Group: "flexlvm", Name: "thinpool"}, p)
	require.Equal(t, "would then create thin pool flexlvm/thinpool of all space that its metadata leaves\n", o.plan(p))
	o.thinSize = "800GiB"
	p, err = o.pool("flexlvm")
	require.NoError(t, err)
	require.Equal(t, "would then create thin pool flexlvm/thinpool of 800 GiB\n", o.plan(p))

	for says, o := range map[string]vgCreateOptions{
		"--thin: is missing":          {thinPool: "thinpool", thinSize: "1G"},
		"apply only with --thin":      {thinPool: "other"},
		"--thin-pool":                 {thin: true, thinPool: "a/b"},
		`--thin-size "x"`:             {thin: true, thinPool: "thinpool", thinSize: "x"},
		"leave it out for all space ": {thin: true, thinPool: "thinpool", thinSize: "0"},
	} {
		_, err := o.pool("flexlvm")
		require.ErrorContains(t, err, says)
	}
	o = vgCreateOptions{thinPool: lvm.DefaultThinPool}
	p, err = o.pool("flexlvm")
	require.NoError(t, err)
	require.Empty(t, o.plan(p))
}

// An empty name, as of a variable of a shell that is not set, is refused before the node is looked at.
func TestEmptyNames(t *testing.T) {
	for _, verb := range []string{"show", "undelete", "forget", "retain", "disown"} {
		for says, args := range map[string][]string{
			"NAME: is empty":                   {""},
			"no volume group before the slash": {"/pvc-1"},
			"--group: is empty":                {"pvc-1", "--group="},
			"name one volume":                  {"pvc-1", "pvc-2"},
		} {
			root := newRoot()
			root.SetArgs(append([]string{"volumes", verb}, args...))
			require.ErrorContains(t, root.Execute(), says, verb)
		}
	}
}
