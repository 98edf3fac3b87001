//go:build vm

package vm

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm/wire"
)

// start boots a machine for one test.
func start(t *testing.T, c Config) *Machine {
	t.Helper()
	m, err := Start(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	t.Logf("booted in %s", m.BootTime().Round(time.Millisecond))
	return m
}

// shell runs a script in the guest, which must succeed.
func shell(t *testing.T, m *Machine, script string) string {
	t.Helper()
	r, err := m.Exec(t.Context(), Command{Args: []string{"sh", "-ec", script}})
	require.NoError(t, err)
	require.Zero(t, r.ExitCode, "%s%s", r.Stdout, r.Stderr)
	return string(r.Stdout)
}

func TestExec(t *testing.T) {
	blob := make([]byte, 5<<20+7)
	_, _ = rand.Read(blob)
	host := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(host, "tree"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(host, "blob"), blob, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(host, "tree/script"), []byte("#!/bin/sh\necho \"$@\"\n"), 0o755))
	require.NoError(t, os.Symlink("script", filepath.Join(host, "tree/link")))
	m := start(t, Config{Files: map[string]string{
		"/blob":               filepath.Join(host, "blob"),
		"/usr/local/lib/tree": filepath.Join(host, "tree"),
		"/bin/via-link":       filepath.Join(host, "tree/link"),
	}})

	exits := []struct {
		name   string
		args   []string
		code   int
		signal int
	}{
		{"success", []string{"true"}, 0, 0},
		{"failure", []string{"sh", "-c", "exit 3"}, 3, 0},
		{"largest", []string{"sh", "-c", "exit 255"}, 255, 0},
		{"killed", []string{"sh", "-c", "kill -9 $$"}, 137, 9},
		{"segmentation fault", []string{"sh", "-c", "kill -SEGV $$"}, 139, 11},
	}
	for _, test := range exits {
		t.Run("exit code: "+test.name, func(t *testing.T) {
			r, err := m.Exec(t.Context(), Command{Args: test.args})
			require.NoError(t, err)
			require.Equal(t, test.code, r.ExitCode)
			require.Equal(t, test.signal, r.Signal)
			require.Empty(t, r.Stdout)
			require.Empty(t, r.Stderr)
		})
	}
	t.Run("a command that is not there is an error", func(t *testing.T) {
		_, err := m.Exec(t.Context(), Command{Args: []string{"no-such-command"}})
		require.ErrorContains(t, err, "no-such-command")
		_, err = m.Exec(t.Context(), Command{Args: []string{"/etc/passwd"}})
		require.ErrorContains(t, err, "permission denied")
	})
	t.Run("output is exact and apart", func(t *testing.T) {
		r, err := m.Exec(t.Context(), Command{Args: []string{"sh", "-c", `cat /blob; printf 'a\r\n\0\004b' >&2`}})
		require.NoError(t, err)
		require.True(t, bytes.Equal(blob, r.Stdout), "%d bytes of %d", len(r.Stdout), len(blob))
		require.Equal(t, "a\r\n\x00\x04b", string(r.Stderr))
	})
	t.Run("one writer for both keeps their order", func(t *testing.T) {
		var both bytes.Buffer
		script := "for i in 1 2 3; do echo o$i; sleep 0.05; echo e$i >&2; sleep 0.05; done"
		_, err := m.Exec(t.Context(), Command{Args: []string{"sh", "-c", script}, Stdout: &both, Stderr: &both})
		require.NoError(t, err)
		require.Equal(t, "o1\ne1\no2\ne2\no3\ne3\n", both.String())
	})
	t.Run("input arrives, and its end", func(t *testing.T) {
		r, err := m.Exec(t.Context(), Command{Args: []string{"cat"}, Stdin: bytes.NewReader(blob)})
		require.NoError(t, err)
		require.True(t, bytes.Equal(blob, r.Stdout))
		r, err = m.Exec(t.Context(), Command{Args: []string{"cat"}})
		require.NoError(t, err)
		require.Empty(t, r.Stdout)
	})
	t.Run("unread input holds nothing up", func(t *testing.T) {
		r, err := m.Exec(t.Context(), Command{Args: []string{"sleep", "0.2"}, Stdin: bytes.NewReader(blob)})
		require.NoError(t, err)
		require.Zero(t, r.ExitCode)
	})
	t.Run("environment and folder", func(t *testing.T) {
		r, err := m.Exec(t.Context(), Command{
			Args: []string{"sh", "-c", `echo "$A|$HOME|$PWD"`}, Env: []string{"A=b c\nd"}, Dir: "/usr/lib",
		})
		require.NoError(t, err)
		require.Equal(t, "b c\nd|/root|/usr/lib\n", string(r.Stdout))
	})
	t.Run("files, folders, links and modes", func(t *testing.T) {
		require.Equal(t, "600 0:0\n", shell(t, m, "stat -c '%a %u:%g' /blob"))
		require.Equal(t, "x y\n", shell(t, m, "/usr/local/lib/tree/link x y"))
		require.Equal(t, "script\n", shell(t, m, "readlink /usr/local/lib/tree/link"))
		require.Equal(t, "z\n", shell(t, m, "test -L /bin; via-link z"))
	})
	t.Run("commands at once", func(t *testing.T) {
		const n = 8
		done := make(chan string, n)
		begun := time.Now()
		for i := range n {
			go func() {
				r, err := m.Exec(t.Context(), Command{Args: []string{"sh", "-c", fmt.Sprintf("sleep 1; echo %d", i)}})
				done <- fmt.Sprintf("%d:%s%v", i, strings.TrimSpace(string(r.Stdout)), err)
			}()
		}
		for range n {
			got := <-done
			require.Equal(t, got[:1]+":"+got[:1]+"<nil>", got)
		}
		require.Less(t, time.Since(begun), 7*time.Second, "one after the other they take 8 s")
	})
	t.Run("a daemon that keeps the output open", func(t *testing.T) {
		r, err := m.Exec(t.Context(), Command{Args: []string{"sh", "-c", "sleep 60 & echo started"}})
		require.NoError(t, err)
		require.Zero(t, r.ExitCode)
		require.Equal(t, "started\n", string(r.Stdout))
	})
	t.Run("a command dies with its context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := m.Exec(ctx, Command{Args: []string{"sh", "-c", "sleep 1234 | cat"}})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Eventually(t, func() bool {
			r, err := m.Exec(t.Context(), Command{Args: []string{"pgrep", "-fx", "sleep 1234"}})
			return err == nil && r.ExitCode == 1
		}, 5*time.Second, 50*time.Millisecond)
	})
	t.Run("a terminal", func(t *testing.T) {
		sizes := make(chan wire.WindowSize, 1)
		sizes <- wire.WindowSize{Rows: 50, Cols: 120}
		r, err := m.Exec(t.Context(), Command{
			Args:  []string{"bash", "-c", "tty; until [ \"$(stty size)\" = '50 120' ]; do sleep 0.05; done; read x; echo got:$x; exit 4"},
			TTY:   &wire.WindowSize{Rows: 24, Cols: 80},
			Stdin: strings.NewReader("hello\n"), Resize: sizes,
		})
		require.NoError(t, err)
		require.Equal(t, 4, r.ExitCode)
		require.Contains(t, string(r.Stdout), "/dev/pts/0\r\n")
		require.Contains(t, string(r.Stdout), "got:hello\r\n")
	})
	t.Run("orphans are reaped", func(t *testing.T) {
		shell(t, m, "for i in 1 2 3; do (true &) ; done; sleep 0.3")
		require.Empty(t, shell(t, m, "ps -eo stat= | grep Z || true"))
	})
	t.Run("the kernel has what the project's tests need", func(t *testing.T) {
		shell(t, m, `modprobe -a dm-thin-pool dm-raid dm-flakey dm-log-writes dm-delay dm-snapshot \
			xfs vfat overlay loop nfsd nfs virtio_net veth bridge nft_nat nf_conntrack`)
	})
	t.Run("loop devices", func(t *testing.T) {
		shell(t, m, "truncate -s 64M /tmp/l; d=$(losetup -f --show /tmp/l); mkfs.vfat $d; blkid -o value -s TYPE $d; losetup -d $d")
	})
}

func TestVolumesWork(t *testing.T) {
	for _, udev := range []bool{false, true} {
		t.Run(fmt.Sprintf("udev=%t", udev), func(t *testing.T) {
			m := start(t, Config{Disks: []Disk{{Size: 2 << 30, Serial: "first"}, {Size: 1 << 30}}, Udev: udev})
			require.Equal(t, "2147483648\n1073741824\nfirst", shell(t, m,
				"blockdev --getsize64 /dev/vda; blockdev --getsize64 /dev/vdb; cat /sys/block/vda/serial"))
			shell(t, m, `
				vgcreate -q flexlvm /dev/vda /dev/vdb
				lvcreate -q -y -Wy -L 400m -n vol flexlvm
				test -b /dev/flexlvm/vol
				mkfs.xfs -q /dev/flexlvm/vol
				mkdir /mnt/vol
				mount -o prjquota /dev/flexlvm/vol /mnt/vol
				xfs_quota -x -c 'project -s -p /mnt/vol 7' -c 'limit -p bhard=100m 7' /mnt/vol >/dev/null`)
			require.Equal(t, "104857600 0\n", shell(t, m, "df -B1 --output=size,used /mnt/vol | tail -n 1 | tr -s ' '"))
			r, err := m.Exec(t.Context(), Command{Args: []string{"sh", "-c", "cat /dev/zero >/mnt/vol/full"}})
			require.NoError(t, err)
			require.NotZero(t, r.ExitCode)
			require.Contains(t, string(r.Stderr), "No space left on device")
			require.Equal(t, "104857600\n", shell(t, m, "stat -c %s /mnt/vol/full"))
			shell(t, m, `
				umount /mnt/vol
				lvrename -q flexlvm vol other
				lvremove -q -y flexlvm/other
				test ! -e /dev/flexlvm/other
				lvcreate -q -y -T --errorwhenfull y -L 200m flexlvm/pool
				lvcreate -q -y -T flexlvm/pool -V 1g -n thin
				lvcreate -q -y --type raid1 -m 1 --nosync -L 100m -n mirror flexlvm
				lvs --reportformat json >/dev/null
				vgremove -q -y flexlvm`)
		})
	}
}

func TestPowerCut(t *testing.T) {
	m := start(t, Config{Disks: []Disk{{Size: 1 << 30}}})
	shell(t, m, `
		mkfs.xfs -q /dev/vda
		mount /dev/vda /mnt
		sync
		dd if=/dev/urandom of=/mnt/kept bs=1M count=8 conv=fsync status=none
		sync /mnt
		echo lost >/mnt/lost
		touch /layer-is-new`)
	sum := shell(t, m, "sha256sum </mnt/kept")

	cut := make(chan error, 1)
	go func() {
		_, err := m.Exec(t.Context(), Command{Args: []string{"sleep", "60"}})
		cut <- err
	}()
	pid := m.PID()
	time.Sleep(200 * time.Millisecond)
	m.PowerCut()
	require.ErrorIs(t, <-cut, errGuestGone)
	require.Zero(t, m.PID())
	require.False(t, runs(pid))
	_, err := m.Exec(t.Context(), Command{Args: []string{"true"}})
	require.Error(t, err)

	require.NoError(t, m.Boot(t.Context()))
	require.Error(t, m.Boot(t.Context()), "it runs already")
	shell(t, m, "mount /dev/vda /mnt; test ! -s /mnt/lost; test ! -e /layer-is-new")
	require.Equal(t, sum, shell(t, m, "sha256sum </mnt/kept"))
}

func TestDiskOfTheCallerStays(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "a,b.img")
	require.NoError(t, makeSparse(disk, 1<<30))
	c := Config{Disks: []Disk{{Path: disk}}}
	r, err := Run(t.Context(), c, Command{Args: []string{"sh", "-ec", "mkfs.xfs -q /dev/vda; mount /dev/vda /mnt; echo there >/mnt/file"}})
	require.NoError(t, err)
	require.Zero(t, r.ExitCode, "%s", r.Stderr)
	r, err = Run(t.Context(), c, Command{Args: []string{"sh", "-ec", "mount /dev/vda /mnt; cat /mnt/file; umount /mnt; blkdiscard -f /dev/vda"}})
	require.NoError(t, err)
	require.Equal(t, "there\n", string(r.Stdout), "%s", r.Stderr)
	var info syscall.Stat_t
	require.NoError(t, syscall.Stat(disk, &info))
	require.Zero(t, info.Blocks, "what the guest discards is given back")
}

func TestWritableRoot(t *testing.T) {
	images, err := BuildImages(t.Context(), os.Stderr)
	require.NoError(t, err)
	root := filepath.Join(t.TempDir(), "root.qcow2")
	require.NoError(t, CreateOverlay(t.Context(), root, images.NodeDisk))
	m := start(t, Config{Root: root, Udev: true})
	shell(t, m, "touch /stays; sync; test -w /; command -v containerd runc nft mount.nfs dropbear >/dev/null")
	require.NoError(t, m.PowerOff())
	require.NoError(t, m.Boot(t.Context()))
	shell(t, m, "test -e /stays")
}

func TestFailuresOfTheMachine(t *testing.T) {
	t.Run("a panic is shown", func(t *testing.T) {
		_, err := Run(t.Context(), Config{}, Command{Args: []string{"sh", "-c", "echo c >/proc/sysrq-trigger; sleep 60"}})
		require.ErrorIs(t, err, errGuestGone)
		require.ErrorContains(t, err, "Kernel panic - not syncing: sysrq triggered crash")
	})
	t.Run("a guest that cannot boot says why", func(t *testing.T) {
		_, err := Run(t.Context(), Config{KernelArgs: []string{"flexlvm.init=/no/such/init"}}, Command{Args: []string{"true"}})
		require.ErrorContains(t, err, "no such file or directory")
	})
	t.Run("time runs out", func(t *testing.T) {
		begun := time.Now()
		_, err := Run(t.Context(), Config{Timeout: 8 * time.Second}, Command{Args: []string{"sleep", "60"}})
		require.ErrorContains(t, err, "used up its 8s")
		require.Less(t, time.Since(begun), 20*time.Second)
	})
	t.Run("a disk without a size", func(t *testing.T) {
		_, err := Start(t.Context(), Config{Disks: []Disk{{}}})
		require.ErrorContains(t, err, "give a size or a path")
	})
	t.Run("a file that is not there", func(t *testing.T) {
		_, err := Start(t.Context(), Config{Files: map[string]string{"/x": "/no/such/file"}})
		require.ErrorIs(t, err, os.ErrNotExist)
	})
	t.Run("qemu's own words", func(t *testing.T) {
		_, err := Start(t.Context(), Config{Disks: []Disk{{Path: "/no/such/disk"}}})
		require.ErrorContains(t, err, "qemu said")
		require.ErrorContains(t, err, "/no/such/disk")
	})
}
