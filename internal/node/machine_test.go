//go:build vm

// The tests of this package change real LVM, XFS and mounts. They run in a virtual node (make test-vm) and
// use the disks in FLEXLVM_TEST_DISKS: all but the last form the group, and the last is for groups that get
// damaged.

package node

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/freeze"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	group   = volume.Group("flexlvm-test")
	cluster = "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01"
)

// TestMain creates the volume group, or, in a process that a test is going to kill, runs one call.
func TestMain(m *testing.M) {
	freeze.Serve()
	if text := os.Getenv(callVariable); text != "" {
		os.Exit(serveCall(text))
	}
	if file := os.Getenv(escapeVariable); file != "" {
		os.Exit(escape(file))
	}
	if dir := os.Getenv(aclsVariable); dir != "" {
		os.Exit(setACLs(dir))
	}
	disks := testDisks()
	if len(disks) < 5 {
		fmt.Println("FLEXLVM_TEST_DISKS must name five disks that may be wiped; run `make test-vm`")
		os.Exit(1)
	}
	args := append([]string{"--yes", "--metadatasize", "16m", string(group)}, disks[:len(disks)-1]...)
	out, err := exec.Command("vgcreate", args...).CombinedOutput()
	if err != nil {
		fmt.Printf("make the volume group: %v: %s\n", err, out)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func testDisks() []string { return strings.Fields(os.Getenv("FLEXLVM_TEST_DISKS")) }

// A machine is an engine with directories of its own on this node.
type machine struct {
	*Engine
	t     *testing.T
	dir   string
	shape volume.Shape // of the volumes in its specs
}

// shapes are the layouts that must behave alike for every user of a volume.
var shapes = []volume.Shape{
	{Layout: volume.Linear},
	{Layout: volume.Striped, Stripes: 3, StripeKiB: 128},
	{Layout: volume.Raid1, Mirrors: 1},
	{Layout: volume.Thin, ThinPool: testPool},
}

// testPool exists while a test of thin volumes runs.
const testPool = volume.Name("thinpool")

// eachLayout runs a test with volumes of every layout.
func eachLayout(t *testing.T, test func(t *testing.T, m *machine)) {
	t.Helper()
	overLayouts(t, test, func(volume.Layout) bool { return true })
}

// eachThickLayout is for volumes that allocate their space when they are created.
func eachThickLayout(t *testing.T, test func(t *testing.T, m *machine)) {
	t.Helper()
	overLayouts(t, test, func(l volume.Layout) bool { return l != volume.Thin })
}

// linearAndThin is eachLayout in full mode (`make campaign`). Otherwise it runs a test with these two:
// striped and raid1 volumes differ from linear ones only in their allocation.
func linearAndThin(t *testing.T, test func(t *testing.T, m *machine)) {
	t.Helper()
	overLayouts(t, test, func(l volume.Layout) bool { return inFull() || l == volume.Linear || l == volume.Thin })
}

func overLayouts(t *testing.T, test func(t *testing.T, m *machine), wanted func(volume.Layout) bool) {
	t.Helper()
	for _, h := range shapes {
		if !wanted(h.Layout) {
			continue
		}
		t.Run(string(h.Layout), func(t *testing.T) {
			m := newMachine(t)
			m.shape = h
			if h.Layout == volume.Thin {
				m.thinPool(6 * volume.GiB)
			}
			test(t, m)
		})
	}
}

// thinPool creates the thin pool, and removes it when the test ends.
func (m *machine) thinPool(size volume.Bytes) lvm.ThinPool {
	m.t.Helper()
	p, err := m.lvm.CreateThinPool(m.ctx(), lvm.NewThinPool{Group: group, Name: testPool, Size: size})
	require.NoError(m.t, err)
	m.t.Cleanup(func() { m.shell("lvremove --yes %s/%s", group, testPool) })
	return p
}

// inFull reports whether the tests run in full mode, in which time does not matter.
func inFull() bool { return os.Getenv("FLEXLVM_CAMPAIGN") != "" }

// campaign is eachLayout in full mode (`make campaign`). Otherwise it runs a test with linear volumes only,
// because the subject does not depend on the layout.
func campaign(t *testing.T, test func(t *testing.T, m *machine)) {
	t.Helper()
	if inFull() {
		eachLayout(t, test)
		return
	}
	test(t, newMachine(t))
}

func newMachine(t *testing.T) *machine { return machineAt(t, t.TempDir(), command.DefaultPath) }

// frozenInTests is how long groups of volumes may be frozen: the work meanwhile may take long on a busy
// machine.
const frozenInTests = 5 * time.Minute

// longAgo is an uptime after which activation no longer waits for missing disks.
func longAgo() time.Duration { return time.Hour }

func machineAt(t *testing.T, dir, path string) *machine {
	t.Helper()
	log := logrus.New()
	log.SetLevel(logrus.DebugLevel)
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	log.SetOutput(f)
	e, err := New(Config{StateDir: dir + "/state", LockDir: dir + "/lock", Log: log, Uptime: longAgo}, command.New(path, log))
	require.NoError(t, err)
	e.maxFrozen = frozenInTests
	m := &machine{Engine: e, t: t, dir: dir, shape: shapes[0]}
	t.Cleanup(func() {
		_ = f.Close()
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("commands of the engine:\n%s", b)
		}
	})
	return m
}

// in returns another machine for volumes of the same layout, for a subtest.
func (m *machine) in(t *testing.T) *machine {
	t.Helper()
	other := newMachine(t)
	other.shape = m.shape
	return other
}

// half creates the logical volume of a spec, with nothing on it.
func (m *machine) half(s volume.Spec, tags volume.Tags) {
	m.t.Helper()
	require.NoError(m.t, m.lvm.Create(m.ctx(), lvm.LogicalVolume{
		Group: s.Group, Name: s.Name, Size: volume.XFSDeviceSize(s.Size, s.Inodes), Shape: s.Shape(), Tags: tags.Strings(),
	}))
}

func specOf(name string, size volume.Bytes) volume.Spec {
	return volume.Spec{
		Group: group, Name: volume.Name(name), Size: size, Layout: volume.Linear,
		Kind: volume.Claim, Cluster: cluster, Namespace: "default",
	}
}

// volume returns a spec, and removes the volume when the test ends.
func (m *machine) volume(name string, size volume.Bytes) volume.Spec {
	m.t.Helper()
	s := specOf(name, size)
	s.Layout, s.Stripes, s.StripeKiB, s.Mirrors = m.shape.Layout, m.shape.Stripes, m.shape.StripeKiB, m.shape.Mirrors
	s.ThinPool = m.shape.ThinPool
	m.t.Cleanup(func() { m.clear(s.Name) })
	return s
}

// clear removes a volume by force, not with the engine under test: with one LVM command, because a virtual
// node takes a twentieth of a second for each.
func (m *machine) clear(n volume.Name) {
	m.t.Helper()
	var named []string
	for _, name := range []volume.Name{n, n.Doomed()} {
		for _, target := range targetsOf(m.t, "/dev/mapper/"+volume.DeviceName(group, name)) {
			require.NoError(m.t, unix.Unmount(target, 0))
		}
		named = append(named, fmt.Sprintf("lv_name=%q", name))
	}
	which := strings.Join(named, " || ")
	out, err := exec.Command("lvremove", "--yes", "--select", which, string(group)).CombinedOutput()
	if err != nil { // also if there is none, in a group that lacks a disk
		require.Empty(m.t, shellOut(fmt.Sprintf("lvs --noheadings -o lv_name --select '%s' %s", which, group)), "%s", out)
	}
}

// targetsOf returns where a device is mounted.
func targetsOf(t *testing.T, device string) (targets []string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[0] == device {
			targets = append(targets, f[1])
		}
	}
	return targets
}

// target creates a directory as kubelet does before it calls.
func (m *machine) target(name string) string {
	m.t.Helper()
	dir := filepath.Join(m.dir, "pods", name)
	require.NoError(m.t, os.MkdirAll(dir, 0o750))
	return dir
}

func (m *machine) mount(s volume.Spec, name string) string {
	m.t.Helper()
	target := m.target(name)
	require.NoError(m.t, m.tryMount(s, target))
	return target
}

func (m *machine) tryMount(s volume.Spec, target string) error {
	m.t.Helper()
	return m.Mount(m.ctx(), s, MountRequest{Target: target})
}

func (m *machine) unmount(target string) {
	m.t.Helper()
	require.NoError(m.t, m.Unmount(m.ctx(), target))
}

func (m *machine) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	m.t.Cleanup(cancel)
	return ctx
}

func (m *machine) shell(format string, args ...any) string {
	m.t.Helper()
	line := fmt.Sprintf(format, args...)
	out, err := exec.Command("sh", "-ec", line).CombinedOutput()
	require.NoError(m.t, err, "%s: %s", line, out)
	return strings.TrimSpace(string(out))
}

// shellOut returns the output of a command, and nothing if the command fails.
func shellOut(line string) string {
	out, err := exec.Command("sh", "-c", line+" 2>/dev/null").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// lvs returns all logical volumes of the group, whoever owns them, except for the thin pool.
func lvs() []string {
	return strings.Fields(shellOut("lvs --noheadings -o lv_name -S 'lv_name!=" + string(testPool) + "' " + string(group)))
}

func tagsOf(t *testing.T, n volume.Name) volume.Tags {
	t.Helper()
	text := shellOut(fmt.Sprintf("lvs --noheadings -o lv_tags %s/%s", group, n))
	tags, err := volume.ParseTags(strings.Split(text, ","))
	require.NoError(t, err, text)
	return tags
}

func isMounted(target string) bool {
	return exec.Command("mountpoint", "-q", target).Run() == nil
}

// df returns the result of statfs, in bytes.
func df(t *testing.T, dir string) (size, used, free volume.Bytes) {
	t.Helper()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(dir, &st))
	b := volume.Bytes(st.Bsize)
	return volume.Bytes(st.Blocks) * b, volume.Bytes(st.Blocks-st.Bfree) * b, volume.Bytes(st.Bavail) * b
}

// fill writes one file until the volume is full and returns its size.
func fill(t *testing.T, file string) volume.Bytes {
	t.Helper()
	return writeFull(t, file, 0, syscall.ENOSPC)
}

// allocate is fill, but gets all except the last MiBs by fallocate, which is fast. It writes the end, because
// fallocate also reserves blocks for the extent map.
func allocate(t *testing.T, file string) volume.Bytes {
	t.Helper()
	_, _, free := df(t, filepath.Dir(file))
	return writeFull(t, file, max(free-4*volume.MiB, 0), syscall.ENOSPC)
}

// writeFull allocates the first bytes by fallocate, and then writes until that fails, which must be with the
// error full.
func writeFull(t *testing.T, file string, first volume.Bytes, full error) volume.Bytes {
	t.Helper()
	f, err := os.Create(file)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	if first > 0 {
		require.NoError(t, unix.Fallocate(int(f.Fd()), 0, 0, int64(first)))
		_, err := f.Seek(int64(first), io.SeekStart)
		require.NoError(t, err)
	}
	// Odd pieces at the end find the exact byte.
	total := first
	for piece := volume.MiB; piece > 0; {
		n, err := f.Write(make([]byte, piece))
		total += volume.Bytes(n)
		if err != nil {
			require.ErrorIs(t, err, full)
			piece /= 4
		}
	}
	require.NoError(t, f.Sync())
	return total
}
