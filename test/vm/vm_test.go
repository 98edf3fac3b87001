//go:build vm

package vm

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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

func TestVolumesWork(t *testing.T) {
	t.Parallel()
	for _, udev := range []bool{false, true} {
		t.Run(fmt.Sprintf("udev=%t", udev), func(t *testing.T) {
			t.Parallel()
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
	t.Parallel()
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
	said, says := io.Pipe()
	go func() {
		_, err := m.Exec(t.Context(), Command{Args: []string{"sh", "-c", "echo begun; exec sleep 600"}, Stdout: says})
		_ = says.Close()
		cut <- err
	}()
	pid := m.PID()
	line, err := bufio.NewReader(said).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "begun\n", line)
	m.PowerCut()
	require.ErrorIs(t, <-cut, errGuestGone)
	require.Zero(t, m.PID())
	require.False(t, runs(pid))
	_, err = m.Exec(t.Context(), Command{Args: []string{"true"}})
	require.Error(t, err)

	require.NoError(t, m.Boot(t.Context()))
	require.Error(t, m.Boot(t.Context()), "it runs already")
	shell(t, m, "mount /dev/vda /mnt; test ! -s /mnt/lost; test ! -e /layer-is-new")
	require.Equal(t, sum, shell(t, m, "sha256sum </mnt/kept"))
}

func TestDiskOfTheCallerStays(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	m := start(t, Config{Root: filepath.Join(t.TempDir(), "root"), Udev: true})
	shell(t, m, "touch /stays; sync; test -w /; command -v containerd crun runc nft mount.nfs dropbear >/dev/null")
	require.NoError(t, m.PowerOff())
	require.NoError(t, m.Boot(t.Context()))
	shell(t, m, "test -e /stays")
}

func TestFailuresOfTheMachine(t *testing.T) {
	t.Parallel() // its subtests have one machine at a time
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
		m := start(t, Config{})
		m.PowerCut()
		limit := (m.BootTime()*3 + 2*time.Second).Round(time.Second) // includes its boot
		begun := time.Now()
		_, err := Run(t.Context(), Config{Timeout: limit}, Command{Args: []string{"sleep", "600"}})
		require.ErrorContains(t, err, "used up its "+limit.String())
		require.Less(t, time.Since(begun), 9*time.Minute, "it did not wait for the command's end")
	})
	t.Run("a disk without a size", func(t *testing.T) {
		_, err := Start(t.Context(), Config{Disks: []Disk{{}}})
		require.ErrorContains(t, err, "give a size or a path")
	})
	t.Run("a file that is not there", func(t *testing.T) {
		_, err := Start(t.Context(), Config{Files: map[string]string{"/x": "/no/such/file"}})
		require.ErrorIs(t, err, os.ErrNotExist)
	})
	t.Run("a disk that is not there", func(t *testing.T) {
		_, err := Start(t.Context(), Config{Disks: []Disk{{Path: "/no/such/disk"}}})
		require.ErrorIs(t, err, os.ErrNotExist)
		require.ErrorContains(t, err, "/no/such/disk")
	})
	t.Run("what the machine's program prints is shown", func(t *testing.T) {
		_, err := Start(t.Context(), Config{Memory: 1})
		require.ErrorContains(t, err, "the machine said")
	})
}
