//go:build vm

// The tests of this file change real LVM, XFS and mounts. They run in a virtual node (make test-vm) on
// an existing, empty volume group flexlvm-test.

package csidoor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/vm/csinode"
)

const (
	callVariable = "FLEXLVM_TEST_CSI_CALL"
	// stepsLine is the last line of a call that was not killed: its number of steps.
	stepsLine = "\nsteps: %d\n"
	mib       = volume.MiB
	// grown exceeds the smallest device that XFS accepts, so that growing to it needs every step.
	grown = 512 * mib
)

// TestMain runs the tests or, in the process that a test is going to kill, one call.
func TestMain(m *testing.M) {
	if text := os.Getenv(callVariable); text != "" {
		os.Exit(serveCall(text))
	}
	os.Exit(m.Run())
}

// A call is one driver call in its own process, which is killed right after the engine's step number
// Die, counted from 1. 0 lets it finish.
type call struct {
	Dir, Verb, Target string
	Spec              volume.Spec
	Size              volume.Bytes
	Die               int
	Key               string // of an encrypted volume
	// Flex calls the engine as the FlexVolume driver does, instead of through the CSI driver.
	Flex bool
	// AsShipped derives keys as on users' nodes, see programs.
	AsShipped bool
}

func serveCall(text string) int {
	var c call
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		fmt.Println(err)
		return 2
	}
	count := 0
	log := logrus.New()
	log.SetLevel(logrus.DebugLevel)
	programs := programs(log)
	if c.AsShipped {
		programs = command.New("", log)
	}
	e, err := node.New(node.Config{StateDir: c.Dir + "/state", LockDir: c.Dir + "/lock", Log: log, After: func(string) {
		if count++; count == c.Die {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}}, programs)
	if err == nil {
		err = c.serve(e)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Printf(stepsLine, count)
	return 0
}

func (c call) serve(e *node.Engine) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if c.Flex {
		switch c.Verb {
		case "mount":
			return errors.Join(os.MkdirAll(c.Target, 0o750), e.Mount(ctx, c.Spec, node.MountRequest{Target: c.Target}))
		case "unmount":
			return e.Unmount(ctx, c.Target)
		case "expand":
			return e.Expand(ctx, c.Spec, c.Size)
		}
		return fmt.Errorf("no verb %q", c.Verb)
	}
	n, err := csinode.Start(ctx, c.Dir+"/csi.sock", e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	if c.Key != "" {
		n.Secrets = map[string]string{"key": c.Key}
	}
	switch c.Verb {
	case "mount":
		return n.Mount(ctx, c.Spec, c.Target)
	case "unmount":
		return n.Unmount(ctx, c.Spec, c.Target)
	case "expand":
		return n.Expand(ctx, c.Spec, c.Target, c.Size)
	}
	return fmt.Errorf("no verb %q", c.Verb)
}

// run makes the call. died reports whether the process was killed as requested.
func (c call) run(t *testing.T) (died bool) {
	t.Helper()
	out, err := c.output(t)
	if err == nil {
		return false
	}
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	status := exit.Sys().(syscall.WaitStatus)
	require.True(t, status.Signaled(), "%s failed by itself: %s", c.Verb, out)
	require.Equal(t, syscall.SIGKILL, status.Signal())
	return true
}

// steps makes the call without killing it and returns its number of steps.
func (c call) steps(t *testing.T) (n int) {
	t.Helper()
	c.Die = 0
	out, err := c.output(t)
	require.NoError(t, err, out)
	_, err = fmt.Sscanf(out[strings.LastIndex(out, "\nsteps: "):], stepsLine, &n)
	require.NoError(t, err, out)
	return n
}

// output makes the call and returns all its output, including the log.
func (c call) output(t *testing.T) (string, error) {
	t.Helper()
	text, err := json.Marshal(c)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), callVariable+"="+string(text))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// untilAlive makes a call through CSI repeatedly, killed after its first step, then after its second,
// and so on, each time from a fresh start. Each killed call is repeated through either driver in turn,
// or (`make campaign`) through both; a call for an encrypted volume only through CSI. check verifies
// the node after each repetition. untilAlive returns the call's number of steps.
func untilAlive(t *testing.T, c call, start func(), check func(die int)) (steps int) {
	t.Helper()
	return killed(t, c, 1, 1, start, check)
}

// afterSomeSteps is untilAlive for a call that another test kills, too, on a volume that differs in few
// steps: it kills after step number first and every third from there. `make campaign` kills after each.
func afterSomeSteps(t *testing.T, first int, c call, start func(), check func(die int)) (steps int) {
	t.Helper()
	if inFull() {
		return killed(t, c, 1, 1, start, check)
	}
	return killed(t, c, first, 3, start, check)
}

func inFull() bool { return os.Getenv("FLEXLVM_CAMPAIGN") != "" }

func killed(t *testing.T, c call, first, stride int, start func(), check func(die int)) (steps int) {
	t.Helper()
	start()
	steps = c.steps(t)
	require.GreaterOrEqual(t, steps, first, "the call had too few steps")
	for die := first; die <= steps; die += stride {
		repeats := []bool{die%2 == 0}
		if inFull() {
			repeats = []bool{false, true}
		}
		if c.Key != "" {
			repeats = []bool{false}
		}
		for _, flex := range repeats {
			start()
			c.Die, c.Flex = die, false
			require.True(t, c.run(t), "step %d of %d", die, steps)
			c.Die, c.Flex = 0, flex
			require.False(t, c.run(t), "the same call again, after death %d", die)
			check(die)
		}
	}
	return steps
}

// A bed is a volume to be created, and where it is mounted.
type bed struct {
	t *testing.T
	call
}

func newBed(t *testing.T) bed {
	t.Helper()
	dir := t.TempDir()
	b := bed{t, call{Dir: dir, Target: filepath.Join(dir, "pods", "a"), Spec: volume.Spec{
		Group: "flexlvm-test", Name: "data", Size: 16 * mib, Layout: volume.Linear, Kind: volume.Claim,
		Cluster: "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01", Namespace: "default",
	}}}
	t.Cleanup(b.clear)
	return b
}

// clear removes the volume by hand, with all that the node recorded of it.
func (b bed) clear() {
	b.t.Helper()
	if err := unix.Unmount(b.Target, 0); err != nil {
		require.True(b.t, errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT), "%v", err)
	}
	// In a virtual node, looking for mappings or the volume takes as long as removing them.
	nodes, err := filepath.Glob("/dev/mapper/flexlvm-[a-z]*")
	require.NoError(b.t, err)
	if len(nodes) > 0 {
		b.sh("for m in $(dmsetup ls --target linear | grep -o '^flexlvm-block-[A-Za-z0-9]*'); do dmsetup remove --verifyudev $m; done; for m in $(dmsetup ls --target crypt | grep -o '^flexlvm-[A-Za-z0-9-]*'); do [ -e /dev/mapper/$m ] && ! grep -q /dev/mapper/$m /proc/mounts && cryptsetup close $m; done; true")
	}
	b.sh("lvremove --yes --select lv_name=data flexlvm-test")
	require.NoError(b.t, os.RemoveAll(b.Dir+"/state"))
}

func (b bed) sh(line string) string {
	b.t.Helper()
	out, err := exec.Command("sh", "-ec", line).CombinedOutput()
	require.NoError(b.t, err, "%s: %s", line, out)
	return strings.TrimSpace(string(out))
}

func (b bed) lvs() string {
	b.t.Helper()
	return b.sh("lvs --noheadings -o lv_name flexlvm-test")
}

func (b bed) verb(verb string) call {
	c := b.call
	c.Verb = verb
	return c
}

// size returns what df shows for the volume, which must be mounted.
func (b bed) size() volume.Bytes {
	b.t.Helper()
	b.sh("mountpoint -q " + b.Target)
	var st unix.Statfs_t
	require.NoError(b.t, unix.Statfs(b.Target, &st))
	return volume.Bytes(st.Blocks) * volume.Bytes(st.Bsize)
}

func TestPublishKilledAfterEveryStep(t *testing.T) {
	b := newBed(t)
	deaths := untilAlive(t, b.verb("mount"), b.clear, func(die int) {
		require.Equal(t, "data", b.lvs(), "one volume after death %d", die)
		require.Equal(t, b.Spec.Size, b.size())
		require.Contains(t, b.sh("lvs --noheadings -o lv_tags flexlvm-test/data"), "flexlvm.state=ready")
		b.sh("dd if=/dev/zero of=" + b.Target + "/fill bs=1M count=15 conv=fsync 2>/dev/null")
	})
	require.Equal(t, 10, deaths, "lvcreate, mkfs; attach, set project, grow, set quota; write record, tag ready, record ready; move mount")
}

func TestUnpublishKilledAfterEveryStep(t *testing.T) {
	b := newBed(t)
	c := b.verb("unmount")
	untilAlive(t, c, func() {
		b.clear()
		require.False(t, b.verb("mount").run(t))
		require.NoError(t, os.WriteFile(b.Target+"/f", []byte("kept"), 0o600))
	}, func(die int) {
		require.NotContains(t, b.sh("cat /proc/self/mountinfo"), b.Target, "after death %d", die)
		c.Die, c.Flex = 0, false
		require.False(t, c.run(t), "kubelet may say it once more")
		require.NoDirExists(t, b.Target)
		require.False(t, b.verb("mount").run(t))
		require.FileExists(t, b.Target+"/f")
	})
}

func TestNodeExpandKilledAfterEveryStep(t *testing.T) {
	b := newBed(t)
	c := b.verb("expand")
	c.Size = grown
	untilAlive(t, c, func() {
		b.clear()
		require.False(t, b.verb("mount").run(t))
		require.NoError(t, os.WriteFile(b.Target+"/f", []byte("kept"), 0o600))
	}, func(die int) {
		require.FileExists(t, b.Target+"/f")
		require.Equal(t, grown, b.size(), "after death %d", die)
		require.Contains(t, b.sh("lvs --noheadings -o lv_tags flexlvm-test/data"), fmt.Sprintf("flexlvm.size=%d", int64(grown)))
		b.sh("fallocate -l 400M " + b.Target + "/large")
	})
}

// A growth that was killed after any step through CSI is completed by a mount through the FlexVolume
// driver.
func TestGrowthKilledThroughOneDoorIsFinishedThroughTheOther(t *testing.T) {
	b := newBed(t)
	for die := 1; ; die++ {
		require.Less(t, die, 30)
		b.clear()
		require.False(t, b.verb("mount").run(t))
		c := b.verb("expand")
		c.Size, c.Die = grown, die
		if !c.run(t) {
			require.Greater(t, die, 3)
			return
		}
		require.False(t, b.verb("unmount").run(t))
		other := b.verb("mount")
		other.Flex = true
		require.False(t, other.run(t))
		size := b.size()
		require.Contains(t, []volume.Bytes{b.Spec.Size, grown}, size)
		b.sh(fmt.Sprintf("fallocate -l %d %s/large", int64(size)*3/4, b.Target))
	}
}
