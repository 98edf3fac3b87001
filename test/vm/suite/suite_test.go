//go:build vm

// Package suite runs what needs a real node in virtual ones: the tests of the engine, the
// smoke tests that operators run, and power cuts.
package suite

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm"
)

// programs is the folder of what was linked for the tests.
var programs string

func TestMain(m *testing.M) {
	err := vm.Announce(context.Background(), os.Stderr)
	if err == nil {
		programs, err = os.MkdirTemp("", "flexlvm-suite-")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(programs)
	os.Exit(code)
}

// linked holds functions that return the path of a program, by what it is linked of. Each program
// is linked once, by whoever wants it first: go keeps what it has compiled, and links anew.
var linked sync.Map

// build makes a static program with the go command and returns its path.
func build(t *testing.T, name string, args ...string) string {
	t.Helper()
	once, _ := linked.LoadOrStore(fmt.Sprintf("%s %q", name, args), sync.OnceValues(func() (string, error) { return link(name, args) }))
	file, err := once.(func() (string, error))()
	require.NoError(t, err)
	return file
}

func link(name string, args []string) (file string, err error) {
	root, err := vm.SourceDir()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(programs, "")
	if err != nil {
		return "", err
	}
	if !slices.Contains(args, "-ldflags") { // stack traces need no symbols, and each boot copies them into its node
		args = append(args, "-ldflags", "-s -w")
	}
	file = filepath.Join(dir, name)
	cmd := exec.Command("go", append(args, "-o", file, "./"+pkg(name))...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if os.Getenv(vm.NodesEnv) == vm.ARM64 {
		cmd.Env = append(cmd.Env, "GOARCH=arm64")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("link %s: %w: %s", name, err, out)
	}
	return file, nil
}

func pkg(name string) string {
	if slices.Contains([]string{"crash", "csicall", "csicontroller"}, name) {
		return "test/vm/" + name
	}
	if name == "guest.test" {
		return "test/vm/guest"
	}
	if tested, ok := strings.CutSuffix(name, ".test"); ok {
		return "internal/" + tested
	}
	return "cmd/" + name
}

// start boots a node that ends with the test.
func start(t *testing.T, c vm.Config) *vm.Machine {
	t.Helper()
	c.Timeout = time.Hour
	cpus, err := vm.NodeCPUs(1) // two such nodes side by side took 44 s for what took 61 s with two processors each
	require.NoError(t, err)
	c.CPUs = cpus
	m, err := vm.Start(context.Background(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// run runs a command in the node, which must succeed, and shows its output as it
// comes, line by line: nodes run side by side.
func run(t *testing.T, m *vm.Machine, env []string, args ...string) {
	t.Helper()
	stdout, stderr := &lines{to: os.Stdout}, &lines{to: os.Stderr}
	res, err := m.Exec(t.Context(), vm.Command{Args: args, Env: env, Stdout: stdout, Stderr: stderr})
	stdout.flush()
	stderr.flush()
	require.NoError(t, err)
	require.Zero(t, res.ExitCode, "%v", args)
}

// lines writes whole lines, each at once.
type lines struct {
	to   io.Writer
	part []byte
}

func (l *lines) Write(data []byte) (int, error) {
	l.part = append(l.part, data...)
	whole := bytes.LastIndexByte(l.part, '\n') + 1
	_, err := l.to.Write(l.part[:whole])
	l.part = append([]byte(nil), l.part[whole:]...)
	return len(data), err
}

func (l *lines) flush() { _, _ = l.to.Write(l.part) }

// disks are what the tests of the engine want: four for the group, so that
// layouts have devices to lie on, one to spoil, and three that declared groups know by
// their serial numbers.
func disks() []vm.Disk {
	all := make([]vm.Disk, 5)
	for i := range all {
		all[i] = vm.Disk{Size: 4 << 30, Unsafe: true}
	}
	for i := range 3 {
		all = append(all, vm.Disk{Size: 1 << 30, Unsafe: true, Serial: fmt.Sprintf("declared-%d", i+1)})
	}
	return all
}

const diskNames = "FLEXLVM_TEST_DISKS=/dev/vda /dev/vdb /dev/vdc /dev/vdd /dev/vde"

type enginePart struct {
	name, tests string
	seconds     int // that it takes
}

// engineParts are the tests of internal/node by their names: a test belongs to the first part
// that names it, and the last names all.
var engineParts = []enginePart{
	{"kills", "Killed", 196},
	{"removals and declared groups", "Declared|Remov|Wipe|Undelete", 75},
	{"copies, layouts and races", "Clone|Snapshot|Cop(y|ies)|AtOnce|Race|Layout", 189},
	{"sizes", "Grow|Expand|Size|Thin|Trim", 111},
	{"all else", ".", 160},
}

// TestEngine runs the tests of internal/node on a real disk, on two nodes side by side: each
// does one thing at a time mostly, and a processor has nothing to do. It is no parallel test,
// and so comes before all that are. What takes longest begins first, here and in the files of
// this package, lest it be alone at the end. FLEXLVM_ENGINE_TESTS names those to run alone, on
// one node.
func TestEngine(t *testing.T) {
	binary := build(t, "node.test", "test", "-c", "-tags", "vm")
	engine := func(name string, flags ...string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := start(t, vm.Config{Disks: disks(), Files: map[string]string{"/node.test": binary}})
			env := []string{diskNames, "FLEXLVM_CAMPAIGN=" + os.Getenv("FLEXLVM_CAMPAIGN")}
			run(t, m, env, append([]string{"/node.test", "-test.v", "-test.timeout", "55m"}, flags...)...)
		})
	}
	if some := os.Getenv("FLEXLVM_ENGINE_TESTS"); some != "" {
		engine("some", "-test.run="+some)
		return
	}
	before := "Udev" // which are TestEngineBesideUdev's
	skip := map[string]string{}
	for _, part := range engineParts {
		skip[part.name] = before
		before += "|" + part.tests
	}
	longestFirst := slices.Clone(engineParts)
	slices.SortFunc(longestFirst, func(a, b enginePart) int { return b.seconds - a.seconds })
	for _, part := range longestFirst {
		engine(part.name, "-test.run="+part.tests, "-test.skip="+skip[part.name])
	}
}

// TestEngineBesideUdev runs the tests that make and find devices once more where
// udev makes the device nodes, with LVM's defaults.
func TestEngineBesideUdev(t *testing.T) {
	t.Parallel()
	binary := build(t, "node.test", "test", "-c", "-tags", "vm")
	m := start(t, vm.Config{
		Udev:  true,
		Disks: disks(),
		Files: map[string]string{"/node.test": binary, "/05-flexlvm.rules": "../../../examples/udev/05-flexlvm.rules"},
	})
	const some = "^(TestMountAgainKeepsData|TestInactiveAfterReboot|TestRemove|TestCreatingIsFinished|TestOneVolumeTenTimesAtOnce|TestFullGroup|TestDeclaredGroup|TestGrowthWaitsForCopyOnWriteSnapshots|TestBlockIsRefused|TestBlockUnmountKilledAfterEveryStep|TestUdev.*)$"
	run(t, m, []string{diskNames}, "/node.test", "-test.v", "-test.run", some)
}

// TestReadersWhereNothingIsTraced: that consumers of a dataset cannot write is no matter
// of tracing, which a hardened node forbids. Only a boot takes that back, so the node is
// one of its own.
func TestReadersWhereNothingIsTraced(t *testing.T) {
	t.Parallel()
	binary := build(t, "node.test", "test", "-c", "-tags", "vm")
	m := start(t, vm.Config{Disks: disks(), Files: map[string]string{"/node.test": binary}})
	run(t, m, nil, "sysctl", "-w", "kernel.yama.ptrace_scope=3")
	run(t, m, []string{diskNames}, "/node.test", "-test.v", "-test.run", "^TestReadersW(hoseMountIsMadeWritable|ithoutAMappingOfOwners)$")
}

// TestDiscovery runs the tests of internal/discovery on disks that have serial numbers.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	binary := build(t, "discovery.test", "test", "-c", "-tags", "vm")
	var disks []vm.Disk
	for i := range 2 {
		disks = append(disks, vm.Disk{Size: 256 << 20, Unsafe: true, Serial: fmt.Sprintf("static-%d", i+1)})
	}
	m := start(t, vm.Config{Disks: disks, Files: map[string]string{"/discovery.test": binary}})
	run(t, m, []string{"FLEXLVM_TEST_DISKS=/dev/vda /dev/vdb"}, "/discovery.test", "-test.v", "-test.run", "^TestMachine")
}

// TestHostNamespaces runs the tests of internal/hostns, which need root.
func TestHostNamespaces(t *testing.T) { runAsRoot(t, "hostns.test") }

// TestMountWatch runs the tests of internal/mount, which need root: of its watch, and of
// the mapping of owners.
func TestMountWatch(t *testing.T) { runAsRoot(t, "mount.test") }

// TestClock: a program's clock is the kernel's, also where its kernel is not asked for it.
func TestClock(t *testing.T) {
	t.Parallel()
	binary := build(t, "guest.test", "test", "-c", "-tags", "guest")
	m := start(t, vm.Config{Files: map[string]string{"/guest.test": binary}})
	run(t, m, []string{"FLEXLVM_CLOCK_MAY_BE_SET=yes"}, "/guest.test", "-test.v")
}

// TestGroupOfHostPrograms: the host's programs are started in a control group.
func TestGroupOfHostPrograms(t *testing.T) {
	t.Parallel()
	binary := build(t, "command.test", "test", "-c", "-tags", "vm")
	m := start(t, vm.Config{Files: map[string]string{"/command.test": binary}})
	run(t, m, nil, "/command.test", "-test.v", "-test.run", "^TestGroup")
}

// TestSizesOnXFS: directories of an export are held to their sizes by the kernel.
func TestSizesOnXFS(t *testing.T) {
	t.Parallel()
	binary := build(t, "nfsquota.test", "test", "-c", "-tags", "vm")
	m := start(t, vm.Config{Disks: []vm.Disk{{Size: 1 << 30}}, Files: map[string]string{"/nfsquota.test": binary}})
	run(t, m, nil, "sh", "-c", `set -e
		mkfs.xfs -q /dev/vda && mkdir -p /srv/export
		mount -o prjquota /dev/vda /srv/export && /nfsquota.test -test.v -test.run '^TestOnXFS$'
		umount /srv/export && mount /dev/vda /srv/export && /nfsquota.test -test.v -test.run '^TestWithoutQuotas$'`)
}

func runAsRoot(t *testing.T, name string) {
	t.Helper()
	t.Parallel()
	binary := build(t, name, "test", "-c", "-tags", "vm")
	m := start(t, vm.Config{Files: map[string]string{"/" + name: binary}})
	run(t, m, nil, "/"+name, "-test.v")
}
