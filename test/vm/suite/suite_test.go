//go:build vm

// Package suite runs tests that need a real node in virtual ones: the engine's tests, the operators'
// smoke tests, and power cuts.
package suite

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/schedule"
	"github.com/flexlvm/flexlvm/test/vm"
)

// programs is the directory of the programs linked for the tests.
var programs string

// slots limits the nodes that run at the same time, as each uses one processor.
var slots *schedule.Slots

func TestMain(m *testing.M) {
	var err error
	if slots, err = schedule.FromFlags(0); err == nil {
		err = vm.Announce(context.Background(), os.Stderr)
	}
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

// linked holds functions that return the path of a program, by its name and arguments. Each program is
// linked once, by the first test that needs it, because go caches compiled packages but links each
// time.
var linked sync.Map

// build builds a static program with the go command and returns its path.
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
	if !slices.Contains(args, "-ldflags") { // stack traces need no symbols, and each boot copies the program to its node
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
	cpus, err := vm.NodeCPUs(1) // two such nodes in parallel took 44 s, where two processors each took 61 s
	require.NoError(t, err)
	c.CPUs = cpus
	m, err := vm.Start(context.Background(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// run runs a command in the node, which must succeed. It prints the command's output line by line as it
// arrives, because nodes run in parallel, and returns what the command wrote to its standard output.
func run(t *testing.T, m *vm.Machine, env []string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	stdout, stderr := &lines{to: io.MultiWriter(os.Stdout, &out)}, &lines{to: os.Stderr}
	res, err := m.Exec(t.Context(), vm.Command{Args: args, Env: env, Stdout: stdout, Stderr: stderr})
	stdout.flush()
	stderr.flush()
	require.NoError(t, err)
	require.Zero(t, res.ExitCode, "%v", args)
	return out.String()
}

// began finds the names of the tests, but not of subtests, that a verbose test program ran.
var began = regexp.MustCompile(`(?m)^=== RUN +(Test\w+)$`)

// runTests runs a test program in the node, with those of its tests that match one of the patterns. Each
// pattern must match one, because a test that has another name meanwhile would not be missed otherwise.
func runTests(t *testing.T, m *vm.Machine, env, program []string, patterns ...string) {
	t.Helper()
	out := run(t, m, env, append(program, "-test.v", "-test.timeout=55m", "-test.run="+strings.Join(patterns, "|"))...)
	var names []string
	for _, name := range began.FindAllStringSubmatch(out, -1) {
		names = append(names, name[1])
	}
	for _, pattern := range patterns {
		require.True(t, slices.ContainsFunc(names, regexp.MustCompile(pattern).MatchString), "%s has no test %s; it ran %s", program, pattern, names)
	}
}

// lines writes each complete line with one call.
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

// disks returns the disks of the engine's tests: four for the group, so that the layouts have enough
// devices, one that tests damage, and three that declared groups find by their serial numbers.
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
	seconds     int // how long it takes
}

// engineParts selects the tests of internal/node by their names. A test belongs to the first part that
// matches, and the last part matches all.
var engineParts = []enginePart{
	{"kills", "Killed", 159},
	{"removals and declared groups", "Declared|Remov|Wipe|Undelete", 65},
	{"copies, layouts and races", "Clone|Snapshot|Cop(y|ies)|AtOnce|Race|Layout", 162},
	{"sizes", "Grow|Expand|Size|Thin|Trim", 73},
	{"all else", ".", 191},
}

// TestEngine runs the tests of internal/node on a real disk, on nodes in parallel, as each mostly does one
// thing at a time and leaves its processor idle. FLEXLVM_ENGINE_TESTS selects tests to run on one node.
func TestEngine(t *testing.T) {
	slots.Group(t)
	engine := func(name string, seconds int, tests, skip string) {
		t.Run(name, func(t *testing.T) {
			slots.Parallel(t, seconds)
			binary := build(t, "node.test", "test", "-c", "-tags", "vm")
			m := start(t, vm.Config{Disks: disks(), Files: map[string]string{"/node.test": binary}})
			env := []string{diskNames, "FLEXLVM_CAMPAIGN=" + os.Getenv("FLEXLVM_CAMPAIGN")}
			runTests(t, m, env, []string{"/node.test", "-test.skip=" + skip}, tests)
		})
	}
	if some := os.Getenv("FLEXLVM_ENGINE_TESTS"); some != "" {
		engine("some", 0, some, "")
		return
	}
	before := "Udev" // TestEngineBesideUdev runs these
	for _, part := range engineParts {
		engine(part.name, part.seconds, part.tests, before)
		before += "|" + part.tests
	}
}

// TestEngineBesideUdev repeats the tests that create and find devices with LVM's defaults, where udev
// creates the device nodes.
func TestEngineBesideUdev(t *testing.T) {
	slots.Parallel(t, 30)
	binary := build(t, "node.test", "test", "-c", "-tags", "vm")
	m := start(t, vm.Config{
		Udev:  true,
		Disks: disks(),
		Files: map[string]string{"/node.test": binary, "/05-flexlvm.rules": "../../../examples/udev/05-flexlvm.rules"},
	})
	runTests(t, m, []string{diskNames}, []string{"/node.test"},
		"^TestMountAgainKeepsData$", "^TestInactiveAfterReboot$", "^TestRemove$", "^TestCreatingIsFinished$", "^TestOneVolumeTenTimesAtOnce$",
		"^TestFullGroup$", "^TestDeclaredGroup$", "^TestGrowthWaitsForCopyOnWriteSnapshots$", "^TestBlockIsRefused$",
		"^TestBlockUnmountKilledAfterEveryStep$", "^TestUdev")
}

// TestReadersWhereNothingIsTraced checks that consumers of a dataset cannot write on a hardened node,
// which forbids ptrace. Only a reboot reverts that setting, so the test has its own node.
func TestReadersWhereNothingIsTraced(t *testing.T) {
	slots.Parallel(t, 0)
	binary := build(t, "node.test", "test", "-c", "-tags", "vm")
	m := start(t, vm.Config{Disks: disks(), Files: map[string]string{"/node.test": binary}})
	run(t, m, nil, "sysctl", "-w", "kernel.yama.ptrace_scope=3")
	runTests(t, m, []string{diskNames}, []string{"/node.test"}, "^TestReadersWhoseMountIsMadeWritable$", "^TestReadersWithoutAMappingOfOwners$")
}

// TestDiscovery runs the tests of internal/discovery on disks with serial numbers.
func TestDiscovery(t *testing.T) {
	slots.Parallel(t, 0)
	binary := build(t, "discovery.test", "test", "-c", "-tags", "vm")
	var disks []vm.Disk
	for i := range 2 {
		disks = append(disks, vm.Disk{Size: 256 << 20, Unsafe: true, Serial: fmt.Sprintf("static-%d", i+1)})
	}
	m := start(t, vm.Config{Disks: disks, Files: map[string]string{"/discovery.test": binary}})
	runTests(t, m, []string{"FLEXLVM_TEST_DISKS=/dev/vda /dev/vdb"}, []string{"/discovery.test"}, "^TestMachine")
}

// TestHostNamespaces runs the tests of internal/hostns, which need root.
func TestHostNamespaces(t *testing.T) { runAsRoot(t, "hostns.test") }

// TestMountWatch runs the tests of internal/mount that need root: of its watch, and of ID-mapped
// mounts.
func TestMountWatch(t *testing.T) { runAsRoot(t, "mount.test") }

// TestClock checks that a program's clock equals the kernel's, also when it is read without a system
// call.
func TestClock(t *testing.T) {
	slots.Parallel(t, 0)
	binary := build(t, "guest.test", "test", "-c", "-tags", "guest")
	m := start(t, vm.Config{Files: map[string]string{"/guest.test": binary}})
	runTests(t, m, []string{"FLEXLVM_CLOCK_MAY_BE_SET=yes"}, []string{"/guest.test"}, "^TestClock$")
}

// TestGroupOfHostPrograms checks that the host's programs are started in a control group.
func TestGroupOfHostPrograms(t *testing.T) {
	slots.Parallel(t, 0)
	binary := build(t, "command.test", "test", "-c", "-tags", "vm")
	m := start(t, vm.Config{Files: map[string]string{"/command.test": binary}})
	runTests(t, m, nil, []string{"/command.test"}, "^TestGroup")
}

// TestSizesOnXFS checks that the kernel enforces the sizes of an export's directories.
func TestSizesOnXFS(t *testing.T) {
	slots.Parallel(t, 0)
	binary := build(t, "nfsquota.test", "test", "-c", "-tags", "vm")
	m := start(t, vm.Config{Disks: []vm.Disk{{Size: 1 << 30}}, Files: map[string]string{"/nfsquota.test": binary}})
	run(t, m, nil, "sh", "-c", "mkfs.xfs -q /dev/vda && mkdir -p /srv/export && mount -o prjquota /dev/vda /srv/export")
	runTests(t, m, nil, []string{"/nfsquota.test"}, "^TestOnXFS$")
	run(t, m, nil, "sh", "-c", "umount /srv/export && mount /dev/vda /srv/export")
	runTests(t, m, nil, []string{"/nfsquota.test"}, "^TestWithoutQuotas$")
}

func runAsRoot(t *testing.T, name string) {
	t.Helper()
	slots.Parallel(t, 0)
	binary := build(t, name, "test", "-c", "-tags", "vm")
	m := start(t, vm.Config{Files: map[string]string{"/" + name: binary}})
	runTests(t, m, nil, []string{"/" + name}, ".")
}
