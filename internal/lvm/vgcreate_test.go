package lvm

import (
	"context"
	"errors"
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

func TestNewGroupCommand(t *testing.T) {
	n := NewGroup{Name: "flexlvm", Devices: []string{"/dev/nvme0n1", "/dev/nvme1n1"}, MetadataSize: 16 * volume.MiB}
	require.NoError(t, n.Validate())
	require.Equal(t, "vgcreate --metadatasize 16777216b --physicalextentsize 4194304b -- flexlvm /dev/nvme0n1 /dev/nvme1n1", strings.Join(n.Argv(), " "))
	require.NotContains(t, n.Argv(), "--yes", "LVM must be free to refuse")
}

func TestNewGroupValidate(t *testing.T) {
	good := NewGroup{Name: "flexlvm", Devices: []string{"/dev/sdb"}, MetadataSize: MinMetadataSize}
	for name, c := range map[string]struct {
		change func(*NewGroup)
		says   string
	}{
		"no name":        {func(n *NewGroup) { n.Name = "" }, "--name: is empty"},
		"no device":      {func(n *NewGroup) { n.Devices = nil }, "DEVICE: is missing"},
		"small metadata": {func(n *NewGroup) { n.MetadataSize-- }, "--metadata-size"},
		"large metadata": {func(n *NewGroup) { n.MetadataSize = MaxMetadataSize + 1 }, "is more than 1 GiB"},
	} {
		t.Run(name, func(t *testing.T) {
			n := good
			c.change(&n)
			require.ErrorContains(t, n.Validate(), c.says)
		})
	}
}

// probes holds the results of wipefs and blkid.
type probes struct {
	wipefs, blkid       string
	wipefsErr, blkidErr error
}

func (p probes) run(argv ...string) (string, error) {
	if argv[0] == "wipefs" {
		return p.wipefs, p.wipefsErr
	}
	return p.blkid, p.blkidErr
}

func TestSignatureProbes(t *testing.T) {
	nothing := testingexec.FakeExitError{Status: 2}
	const heading = "# offset,uuid,label,type\n"
	const partition = "DEVNAME=/dev/x2\nPART_ENTRY_SCHEME=gpt\nPART_ENTRY_NAME=my\\ disk\nPART_ENTRY_UUID=f2cea37b-edc7-d24b-ada9-b8b5e9302e9d\nPART_ENTRY_NUMBER=2\nPART_ENTRY_SIZE=2048000\nPART_ENTRY_DISK=254:16\n"
	for name, c := range map[string]struct {
		probes probes
		says   string
	}{
		"both silent":                {probes{wipefs: heading, blkidErr: nothing}, ""},
		"silent without a heading":   {probes{blkidErr: nothing}, ""},
		"wipefs finds LVM":           {probes{wipefs: heading + "0x218,Fd4uCt,,LVM2_member\n", blkidErr: nothing}, "0x218,Fd4uCt,,LVM2_member"},
		"a hidden group, by wipefs":  {probes{wipefs: heading + "0x218,Fd4uCt,,LVM2_member\n", blkidErr: nothing}, "first check with `pvs --devicesfile '' /dev/x` (or `pvs /dev/x`, if"},
		"a hidden group, by blkid":   {probes{wipefs: heading, blkid: "DEVNAME=/dev/x\nTYPE=LVM2_member\n"}, "may hide the group; then clear it with `wipefs --all /dev/x`"},
		"no group":                   {probes{wipefs: heading + "0x0,u,,ext4\n", blkidErr: nothing}, "if what it holds is not wanted, clear it with `wipefs --all /dev/x`"},
		"wipefs fails":               {probes{wipefsErr: testingexec.FakeExitError{Status: 1}, blkidErr: nothing}, "cannot tell whether it is blank"},
		"wipefs is missing":          {probes{wipefsErr: commandtest.Missing("wipefs"), blkidErr: nothing}, "util-linux"},
		"blkid finds a file system":  {probes{blkid: "DEVNAME=/dev/x\nTYPE=ext4\n"}, "DEVNAME=/dev/x TYPE=ext4"},
		"blkid finds a partition":    {probes{blkid: partition}, ""},
		"blkid finds more in it":     {probes{blkid: partition + "TYPE=xfs\n"}, "TYPE=xfs"},
		"blkid names but the device": {probes{blkid: "DEVNAME=/dev/x\n"}, "not blank"},
		"blkid succeeds and is mute": {probes{}, "not blank"},
		"blkid is of two minds":      {probes{blkidErr: testingexec.FakeExitError{Status: 8}}, "cannot tell whether it is blank"},
		"blkid cannot read":          {probes{blkidErr: testingexec.FakeExitError{Status: 4}}, "cannot tell whether it is blank"},
		"blkid runs out of time":     {probes{blkidErr: context.DeadlineExceeded}, "cannot tell whether it is blank"},
	} {
		t.Run(name, func(t *testing.T) {
			p := prober{run: commandtest.Func(c.probes.run)}
			d := candidate{path: "/dev/x"}
			err := errors.Join(p.checkWipefs(context.Background(), d), p.checkBlkid(context.Background(), d))
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
		})
	}
}

// sysfs creates a directory with the disk sdb and the given files.
func sysfs(t *testing.T, files ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, f := range append([]string{"sdb/ro=0", "sdb/holders/", "sdb/slaves/", "sdb/queue/"}, files...) {
		name, content, isFile := cut(f)
		path := filepath.Join(root, name)
		if !isFile {
			require.NoError(t, os.MkdirAll(path, 0o755))
			continue
		}
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content+"\n"), 0o600))
	}
	return root
}

func cut(f string) (name, content string, isFile bool) {
	for i := range f {
		if f[i] == '=' {
			return f[:i], f[i+1:], true
		}
	}
	return f, "", false
}

func TestCheckKernel(t *testing.T) {
	part := []string{"sdb/sdb1/ro=0", "sdb/sdb1/partition=1", "sdb/sdb1/holders/"}
	for name, c := range map[string]struct {
		files []string
		dir   string
		says  string
	}{
		"a disk":                    {nil, "sdb", ""},
		"a partition":               {part, "sdb/sdb1", ""},
		"read-only":                 {[]string{"sdb/ro=1"}, "sdb", "read-only"},
		"with a partition":          {part, "sdb", "it has a partition, sdb1"},
		"held":                      {[]string{"sdb/holders/md0/"}, "sdb", "another device is made of it (md0"},
		"made of others":            {[]string{"sdb/slaves/sdc/"}, "sdb", "made of other devices (sdc"},
		"a partition that is held":  {append(part, "sdb/sdb1/holders/dm-0/"), "sdb/sdb1", "dm-0"},
		"a partition of a held one": {append(part, "sdb/holders/dm-0/"), "sdb/sdb1", "dm-0"},
		"nothing to read":           {nil, "sdc", "cannot tell whether it is blank"},
	} {
		t.Run(name, func(t *testing.T) {
			d := candidate{path: "/dev/sdb", dir: filepath.Join(sysfs(t, c.files...), c.dir)}
			err := prober{}.checkKernel(d)
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestCheckKernelNeedsHolders(t *testing.T) {
	root := sysfs(t)
	require.NoError(t, os.Remove(filepath.Join(root, "sdb/holders")))
	err := prober{}.checkKernel(candidate{path: "/dev/sdb", dir: filepath.Join(root, "sdb")})
	require.ErrorContains(t, err, "cannot tell whether it is blank")
}

func TestCheckMountsAndSwaps(t *testing.T) {
	var null unix.Stat_t
	require.NoError(t, unix.Stat("/dev/null", &null))
	proc := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(proc, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	const mounts = "22 1 254:0 / / rw,relatime - ext4 /dev/vda1 rw\n"
	p := prober{proc: proc}
	free := candidate{path: "/dev/sdb", number: unix.Mkdev(8, 16)}

	require.ErrorContains(t, p.checkMounts(free), "cannot tell", "no list of mounts")
	write("self/mountinfo", mounts)
	require.ErrorContains(t, p.checkMounts(free), "cannot tell", "none of process 1's")
	write("1/mountinfo", mounts+"30 22 8:32 / /srv rw - xfs /dev/sdc rw\n")
	require.NoError(t, p.checkMounts(free))
	require.ErrorContains(t, p.checkMounts(candidate{number: unix.Mkdev(8, 32)}), "mounted on /srv")
	write("1/mountinfo", "29 22 8:48 "+strings.Repeat("/long", 20_000)+" /pod rw - xfs /dev/sdd rw\n"+mounts+"30 22 8:32 / /srv rw - xfs /dev/sdc rw\n")
	require.NoError(t, p.checkMounts(free), "a tenant made a line longer than 64 KiB")
	require.ErrorContains(t, p.checkMounts(candidate{number: unix.Mkdev(8, 32)}), "mounted on /srv")
	require.ErrorContains(t, p.checkMounts(candidate{number: unix.Mkdev(8, 48)}), "mounted on /pod")

	require.NoError(t, p.checkSwaps(free), "a kernel without swap")
	write("swaps", "Filename Type Size Used Priority\n/swapfile file 1 0 -2\n/dev/null partition 1 0 -3\n")
	require.NoError(t, p.checkSwaps(free))
	require.ErrorContains(t, p.checkSwaps(candidate{number: null.Rdev}), "in use as swap")
	write("swaps", "Filename Type Size Used Priority\n/dev/does-not-exist partition 1 0 -3\n")
	require.ErrorContains(t, p.checkSwaps(free), "cannot tell")
}

func TestCheckOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Truncate(file, int64(8*volume.MiB)))
	require.NoError(t, checkOpen(candidate{path: file}, 8*volume.MiB))
	require.ErrorContains(t, checkOpen(candidate{path: file}, 9*volume.MiB), "has 8 MiB, and 9 MiB is the least")
	require.ErrorContains(t, checkOpen(candidate{path: file + "x"}, volume.MiB), "cannot tell")
}

func TestIdentifyRefuses(t *testing.T) {
	for path, says := range map[string]string{
		"sdb":                 "give the whole path",
		"/dev/does-not-exist": "no such file",
		"/dev/null":           "is not a block device",
		"/etc":                "is not a block device",
	} {
		_, err := prober{sys: "/sys"}.identify(path)
		require.ErrorContains(t, err, says)
	}
}
