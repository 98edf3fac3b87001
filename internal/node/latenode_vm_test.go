//go:build vm

package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// After a boot the host activates volumes as well, and LVM does not wait for the nodes in /dev
// that udev makes for that.
func TestNodeInDevThatIsLate(t *testing.T) {
	m := newMachine(t)
	s := m.volume("late", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))

	programs := t.TempDir()
	late := "#!/bin/sh\n(sleep 1; test -e " + devicePath(s) + " || touch " + programs + "/late; PATH=" + command.DefaultPath + " vgmknodes \"$@\") </dev/null >/dev/null 2>&1 &\n"
	require.NoError(t, os.WriteFile(filepath.Join(programs, "vgmknodes"), []byte(late), 0o700))
	slow := machineAt(t, m.dir, programs+":"+command.DefaultPath)
	require.NoError(t, os.Remove(devicePath(s)))
	slow.unmount(slow.mount(s, "a"))
	require.FileExists(t, programs+"/late", "the node was there before")
}
