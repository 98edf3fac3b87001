//go:build vm

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

const callVariable = "FLEXLVM_TEST_CALL"

// A call is one use of the engine in a process of its own, which is killed right after its step number Die,
// counted from 1; 0 lets it finish.
type call struct {
	Dir    string
	Verb   string
	Spec   volume.Spec
	More   []volume.Spec // of remove-all, and snapshot-group
	Target string
	Size   volume.Bytes
	Die    int
	// Declared are the groups of the verb declare.
	Declared []volumegroup.Declaration
}

func (c call) command(t *testing.T) *exec.Cmd {
	t.Helper()
	b, err := json.Marshal(c)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), callVariable+"="+string(b))
	return cmd
}

// run makes the call; died reports whether the process was killed as requested.
func (c call) run(t *testing.T) (died bool) {
	t.Helper()
	out, err := c.command(t).CombinedOutput()
	return c.killed(t, err, out)
}

// runFor makes the call and kills it after that long.
func (c call) runFor(t *testing.T, d time.Duration) (died bool) {
	t.Helper()
	cmd := c.command(t)
	require.NoError(t, cmd.Start())
	timer := time.AfterFunc(d, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	return c.killed(t, cmd.Wait(), nil)
}

func (c call) killed(t *testing.T, err error, out []byte) bool {
	t.Helper()
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

func serveCall(text string) int {
	var c call
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		fmt.Println(err)
		return 2
	}
	count := 0
	cfg := Config{StateDir: c.Dir + "/state", LockDir: c.Dir + "/lock", After: func(string) {
		if count++; count == c.Die {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}}
	e, err := New(cfg, command.New("", logrus.New()))
	if err != nil {
		fmt.Println(err)
		return 2
	}
	e.maxFrozen, e.wipeProgressInterval = frozenInTests, 256*volume.MiB
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := c.serve(ctx, e); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func (c call) serve(ctx context.Context, e *Engine) error {
	ref := Ref{Group: c.Spec.Group, DirectoryPool: c.Spec.DirectoryPool, Name: c.Spec.Name, Cluster: c.Spec.Cluster}
	switch c.Verb {
	case "mount":
		return e.Mount(ctx, c.Spec, MountRequest{Target: c.Target})
	case "clone":
		return e.CreateCloneAhead(ctx, c.Spec)
	case "snapshot":
		_, err := e.MakeSnapshot(ctx, SnapshotRequest{Spec: c.Spec}, stillWanted)
		return err
	case "snapshot-group":
		_, err := e.MakeSnapshotGroup(ctx, requestsOf(append([]volume.Spec{c.Spec}, c.More...)), stillWanted)
		return err
	case "make-pool":
		_, err := e.MakeDirectoryPool(ctx, c.Spec.Group, c.Spec.DirectoryPool, c.Size)
		return err
	case "remove-pool":
		return e.RemoveDirectoryPool(ctx, c.Spec.Group, c.Spec.DirectoryPool)
	case "unmount":
		return e.Unmount(ctx, c.Target)
	case "expand":
		return e.Expand(ctx, c.Spec, c.Size)
	case "release":
		return e.Release(ctx, ref, volume.Unreferenced, volume.Disposal{})
	case "set-state ready", "set-state unreferenced":
		_, err := e.SetState(ctx, ref.Group, ref.Name, volume.State(strings.TrimPrefix(c.Verb, "set-state ")))
		return err
	case "adopt":
		_, err := e.Adopt(ctx, Adoption{Group: ref.Group, Name: ref.Name, Cluster: ref.Cluster, Namespace: c.Spec.Namespace})
		return err
	case "disown":
		return e.Disown(ctx, ref.Group, ref.Name)
	case "remove":
		return e.Remove(ctx, ref)
	case "declare":
		_, err := e.MakeDeclared(ctx, c.Declared, func(context.Context, volumegroup.Declaration) error { return nil })
		return err
	case "create ahead":
		return e.CreateAhead(ctx, c.Spec, stillWanted)
	case "loop":
		out, _, err := e.MakeLoopGroup(ctx, c.Declared[0])
		if err == nil && out.State != volumegroup.Made {
			err = fmt.Errorf("%s: %v", out.Message, out.Refused)
		}
		return err
	case "trim":
		_, err := e.Trim(ctx, ref, 0)
		return err
	case "remove-all":
		return c.removeAll(ctx, e)
	}
	return fmt.Errorf("no verb %q", c.Verb)
}

func (c call) removeAll(ctx context.Context, e *Engine) error {
	var refs []Ref
	for _, s := range append([]volume.Spec{c.Spec}, c.More...) {
		ref := refOf(s)
		lv, err := e.lvm.Volume(ctx, s.Group, s.Name)
		if err != nil {
			return err
		}
		ref.UUID = lv.UUID
		refs = append(refs, ref)
	}
	return errors.Join(e.RemoveAll(ctx, refs)...)
}
