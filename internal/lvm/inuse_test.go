package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	testingexec "k8s.io/utils/exec/testing"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// numberInFile takes a file with the text "block 8:16" for that device, and one with "denied" for
// a file without permission.
func numberInFile(path string) (number uint64, is bool, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false, err
	}
	if strings.HasPrefix(string(text), "denied") {
		return 0, false, &os.PathError{Op: "statx", Path: path, Err: unix.EACCES}
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(string(text), "block %d:%d", &major, &minor); err != nil {
		return 0, false, nil
	}
	return unix.Mkdev(major, minor), true, nil
}

// bystander creates a host with a blank disk, /dev/sdb with number 8:16, and a process 1 that does not
// use it. files are created below the host's root, for which ROOT stands: "a=b" is a file with content
// b, "a -> b" is a link, and other names are directories.
func bystander(t *testing.T, files ...string) (prober, candidate) {
	t.Helper()
	root := t.TempDir()
	const mounts = "22 1 254:0 / / rw,relatime - ext4 /dev/vda1 rw"
	all := append([]string{
		"disk=", "dev/sdb=block 8:16", "dev/sdc=block 8:32", "dev/image=data",
		"sys/block/loop0/", "sys/block/sdb/ro=0", "sys/block/sdb/holders/", "sys/block/sdb/slaves/", "sys/block/sdb/dev=8:16",
		"proc/self/mountinfo=" + mounts, "proc/1/mountinfo=" + mounts, "proc/1/fd/0 -> ROOT/dev/image", "proc/1/fd/1 -> pipe:[99]", "proc/sys/",
	}, files...)
	for _, f := range all {
		f = strings.ReplaceAll(f, "ROOT", root)
		name, content, isFile := cut(f)
		name, target, isLink := strings.Cut(name, " -> ")
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		switch {
		case isLink:
			require.NoError(t, os.Symlink(target, path))
		case isFile:
			require.NoError(t, os.WriteFile(path, []byte(content+"\n"), 0o600))
		default:
			require.NoError(t, os.MkdirAll(path, 0o755))
		}
	}
	disk := filepath.Join(root, "disk")
	require.NoError(t, os.Truncate(disk, int64(8*volume.MiB)))
	run := commandtest.Func(probes{blkidErr: testingexec.FakeExitError{Status: blkidNothing}}.run)
	p := prober{run: run, users: true, sys: filepath.Join(root, "sys"), proc: filepath.Join(root, "proc"), blockNumber: numberInFile}
	return p, candidate{path: disk, number: unix.Mkdev(8, 16), dir: filepath.Join(root, "sys/block/sdb")}
}

// A disk may be in use by a process or device that does not open it with O_EXCL.
func TestCheckUsers(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		says  string
	}{
		"nobody":                       {nil, ""},
		"open in a process":            {[]string{"proc/7/fd/3 -> ROOT/dev/sdb", "proc/7/comm=qemu"}, "it is in use: process 7 (qemu) has it open"},
		"by another name":              {[]string{"dev/pod-volume=block 8:16", "proc/7/fd/3 -> ROOT/dev/pod-volume"}, "process 7"},
		"another disk is open":         {[]string{"proc/7/fd/3 -> ROOT/dev/sdc"}, ""},
		"open in a thread":             {[]string{"proc/7/fd/", "proc/7/task/7/fd/", "proc/7/task/8/fd/3 -> ROOT/dev/sdb"}, "process 7"},
		"a process that ends":          {[]string{"proc/7/"}, ""},
		"a file that is closed":        {[]string{"proc/7/fd/3 -> ROOT/dev/nothing"}, ""},
		"a file that is hidden":        {[]string{"dev/hidden=denied", "proc/7/fd/3 -> ROOT/dev/hidden"}, "cannot tell whether it is blank"},
		"a process that is no process": {[]string{"proc/7=denied"}, "cannot tell whether it is blank"},
		"a loop device":                {[]string{"sys/block/loop1/loop/backing_file=ROOT/dev/sdb"}, "it is in use: loop1 is made of it"},
		"a loop device of process 1":   {[]string{"sys/block/loop1/loop/backing_file=/elsewhere/volume", "proc/1/root/elsewhere/volume=block 8:16"}, "loop1 is made of it"},
		"names of two namespaces":      {[]string{"sys/block/loop1/loop/backing_file=ROOT/dev/image", "proc/1/root/ROOT/dev/image=block 8:16"}, "loop1 is made of it"},
		"a loop device of a file":      {[]string{"sys/block/loop1/loop/backing_file=ROOT/dev/image"}, ""},
		"a loop device of process 1's": {[]string{"sys/block/loop1/loop/backing_file=/elsewhere/image", "proc/1/root/elsewhere/image=data"}, ""},
		"a loop device being detached": {[]string{"sys/block/loop1/loop/backing_file="}, ""},
		"a loop device of what is not": {[]string{"sys/block/loop1/loop/backing_file=/gone (deleted)"}, "losetup --detach /dev/loop1"},
		"a loop device that is hidden": {[]string{"dev/hidden=denied", "sys/block/loop1/loop/backing_file=ROOT/dev/hidden"}, "cannot tell whether it is blank"},
		"a loop device without a file": {[]string{"sys/block/loop1/loop/backing_file/"}, "cannot tell whether it is blank"},
		"device-mapper":                {[]string{"sys/block/sdb/holders/dm-3/"}, "another device is made of it (dm-3"},
	} {
		t.Run(name, func(t *testing.T) {
			p, d := bystander(t, c.files...)
			err := p.check(context.Background(), d, volume.MiB)
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
			require.Equal(t, strings.Contains(c.says, "process"), errors.Is(err, ErrOpen), "only that may pass")
		})
	}
}

// A partition is in use if its disk is.
func TestCheckUsersOfAPartition(t *testing.T) {
	files := []string{"sys/block/sdb/sdb1/partition=1", "sys/block/sdb/sdb1/ro=0", "sys/block/sdb/sdb1/holders/"}
	for _, open := range []string{"", "proc/7/fd/3 -> ROOT/dev/sdb"} {
		p, d := bystander(t, append(files, open)...)
		d.number, d.dir = unix.Mkdev(8, 17), filepath.Join(d.dir, "sdb1")
		err := p.check(context.Background(), d, volume.MiB)
		if open == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "process 7")
	}
}

// If processes or block devices cannot be listed, it is unknown who uses the disk, and the check fails.
func TestCheckUsersSeesNothing(t *testing.T) {
	for _, missing := range []string{"proc/1", "proc", "sys/block"} {
		p, d := bystander(t)
		require.NoError(t, os.RemoveAll(filepath.Join(filepath.Dir(p.proc), missing)))
		require.ErrorContains(t, p.checkUsers(d), "cannot tell whether it is blank", missing)
	}
}

func TestBlockNumber(t *testing.T) {
	for _, path := range []string{"/dev/null", "/proc/self/exe", t.TempDir()} {
		_, is, err := blockNumber(path)
		require.NoError(t, err)
		require.False(t, is, path)
	}
	f, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	number, _, err := blockNumber(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	require.NoError(t, err)
	require.Equal(t, unix.Mkdev(1, 3), number)
	_, _, err = blockNumber("/dev/does-not-exist")
	require.ErrorIs(t, err, os.ErrNotExist)
}
