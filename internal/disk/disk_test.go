package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// host creates /sys and /dev from files such as "devices/x/block/sdb/size=2048"; a name that ends with a
// slash is a directory. Every "block/NAME" in them is linked from /sys/block.
func host(t *testing.T, files ...string) Host {
	t.Helper()
	h := Host{Sys: t.TempDir(), Dev: t.TempDir()}
	require.NoError(t, os.MkdirAll(filepath.Join(h.Sys, "block"), 0o755))
	linked := map[string]bool{}
	for _, f := range files {
		name, content, isFile := strings.Cut(f, "=")
		path := filepath.Join(h.Sys, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if isFile {
			require.NoError(t, os.WriteFile(path, []byte(content+"\n"), 0o600))
		} else {
			require.NoError(t, os.MkdirAll(path, 0o755))
		}
		dir, rest, is := strings.Cut(name, "/block/")
		disk, _, _ := strings.Cut(rest, "/")
		if is && !linked[disk] {
			linked[disk] = true
			require.NoError(t, os.Symlink(filepath.Join(h.Sys, dir, "block", disk), filepath.Join(h.Sys, "block", disk)))
		}
	}
	return h
}

// device returns the files that the kernel shows for every block device, and more.
func device(dir string, more ...string) []string {
	files := []string{dir + "/size=2097152", dir + "/removable=0", dir + "/dev=8:16", dir + "/queue/rotational=1"}
	for _, m := range more {
		files = append(files, dir+"/"+m)
	}
	return files
}

func TestList(t *testing.T) {
	const scsi = "devices/pci0/ata2/host1/target/block/sdb"
	for name, c := range map[string]struct {
		files []string
		want  *Disk
	}{
		"a SCSI disk":        {device(scsi, "device/wwid=naa.5000c500a1b2c3d4"), &Disk{ID: "naa.5000c500a1b2c3d4", Rotational: true}},
		"an ATA disk":        {device(scsi, "device/wwid=t10.ATA     QEMU HARDDISK    QM00001  "), &Disk{ID: "t10.ATA_QEMU_HARDDISK_QM00001", Rotational: true}},
		"a solid state disk": {append(device(scsi, "device/"), scsi+"/queue/rotational=0"), &Disk{}},
		"an NVMe disk":       {device("devices/pci0/nvme/nvme0/block/sdb", "wwid=eui.0025385b11502f6d", "device/transport=pcie"), &Disk{ID: "eui.0025385b11502f6d", Rotational: true}},
		"NVMe over TCP":      {device("devices/virtual/nvme-fabrics/ctl/nvme0/block/sdb", "wwid=uuid.1", "device/transport=tcp"), &Disk{ID: "uuid.1", Rotational: true, Remote: true}},
		"one of two paths, NVMe": {device("devices/virtual/nvme-subsystem/nvme-subsys0/block/sdb", "wwid=uuid.1", "device/nvme0/transport=pcie", "device/nvme1/transport=rdma"),
			&Disk{ID: "uuid.1", Rotational: true, Remote: true}},
		"a virtual disk":         {device("devices/pci0/virtio2/block/sdb", "device/", "serial=data-1"), &Disk{ID: "serial-data-1", Rotational: true}},
		"without a serial":       {device("devices/pci0/virtio2/block/sdb", "device/", "serial="), &Disk{Rotational: true}},
		"a serial that is none":  {device("devices/pci0/virtio2/block/sdb", "device/", "serial=(null)"), &Disk{Rotational: true}},
		"a maker's placeholder":  {device(scsi, "device/wwid=", "device/serial=To Be Filled By O.E.M."), &Disk{Rotational: true}},
		"a name with none in it": {device("devices/pci0/virtio2/block/sdb", "device/", "serial=none-1"), &Disk{ID: "serial-none-1", Rotational: true}},
		"a serial of zeros":      {device("devices/pci0/virtio2/block/sdb", "device/", "serial=0000-00"), &Disk{Rotational: true}},
		"a WWN of zeros":         {device(scsi, "device/wwid=naa.0000000000000000", "device/serial=Z1"), &Disk{ID: "serial-Z1", Rotational: true}},
		"a serial with a comma":  {device("devices/pci0/virtio2/block/sdb", "device/", "serial=a,b@c*"), &Disk{ID: "serial-a_b_c_", Rotational: true}},
		"Fibre Channel":          {device("devices/pci0/host2/rport-2:0-1/target/block/sdb", "device/wwid=naa.6"), &Disk{ID: "naa.6", Rotational: true, Remote: true}},
		"iSCSI":                  {device("devices/platform/host3/session1/target/block/sdb", "device/wwid=naa.6"), &Disk{ID: "naa.6", Rotational: true, Remote: true}},
		"a loop or LVM device":   {device("devices/virtual/block/sdb"), nil},
		"a path of a subsystem":  {[]string{"devices/virtual/nvme/block/sdb/device/", "devices/virtual/nvme/block/sdb/size=1"}, nil},
		"a disk that goes away":  {[]string{scsi + "/device/", scsi + "/size=2097152"}, nil},
		"a card in its reader":   {append(device(scsi, "device/"), scsi+"/removable=1"), &Disk{Rotational: true, Removable: true}},
		"a memory card":          {device("devices/mmc/block/sdb", "device/cid=1501004d38473150", "device/serial=0x12345678"), &Disk{ID: "cid-1501004d38473150", Rotational: true}},
		"a card that says so":    {device("devices/mmc/block/sdb", "device/cid=1501004d38473150", "device/type=SD"), &Disk{ID: "cid-1501004d38473150", Rotational: true, Removable: true}},
		"soldered on":            {device("devices/mmc/block/sdb", "device/cid=1501004d38473150", "device/type=MMC"), &Disk{ID: "cid-1501004d38473150", Rotational: true}},
		"on USB":                 {device("devices/pci0/usb2/2-1/host6/target/block/sdb", "device/wwid=naa.5"), &Disk{ID: "naa.5", Rotational: true, Removable: true}},
		"a number of zeros":      {device("devices/mmc/block/sdb", "device/serial=0x00000000"), &Disk{Rotational: true}},
	} {
		t.Run(name, func(t *testing.T) {
			h := host(t, c.files...)
			all, err := h.List()
			require.NoError(t, err)
			if c.want == nil {
				require.Empty(t, all)
				return
			}
			require.Len(t, all, 1)
			c.want.Path, c.want.Size, c.want.Number = h.Dev+"/sdb", volume.GiB, 8<<8|16
			require.Equal(t, *c.want, all[0])
		})
	}
}

// A disk whose WWN cannot be read gets no ID from its serial number: the records of the disk would be
// taken for those of another one.
func TestAnIdentityThatCannotBeRead(t *testing.T) {
	dir := "devices/pci0/block/sdb"
	all, err := host(t, append(device(dir, "serial=Z1"), dir+"/device/wwid/")...).List()
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Empty(t, all[0].ID)
}

// Values of the kernel that cannot be parsed are an error.
func TestListOfWhatIsNotUnderstood(t *testing.T) {
	for _, broken := range []string{"size=much", "removable=-1", "queue/rotational=", "dev=8"} {
		dir := "devices/pci0/block/sdb"
		_, err := host(t, append(device(dir, "device/"), dir+"/"+broken)...).List()
		require.ErrorContains(t, err, "list disks: sdb", broken)
	}
}

func TestCheckZeroSamples(t *testing.T) {
	file := filepath.Join(t.TempDir(), "disk")
	for name, c := range map[string]struct {
		size int64
		at   int64 // offset of a byte that is not zero; -1: none
		full bool
	}{
		"blank":                     {size: 64 << 20, at: -1},
		"odd size":                  {size: 64<<20 + 512, at: -1},
		"one MiB":                   {size: 1 << 20, at: -1},
		"first byte":                {size: 64 << 20, at: 0, full: true},
		"last byte":                 {size: 64<<20 + 512, at: 64<<20 + 511, full: true},
		"in the midst":              {size: 64 << 20, at: positions(64<<20, samples)[7] + 100, full: true},
		"one that is not looked at": {size: 1 << 30, at: 2 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(file, nil, 0o600))
			require.NoError(t, os.Truncate(file, c.size))
			if c.at >= 0 {
				f, err := os.OpenFile(file, os.O_WRONLY, 0)
				require.NoError(t, err)
				_, err = f.WriteAt([]byte{1}, c.at)
				require.NoError(t, err)
				require.NoError(t, f.Close())
			}
			err := CheckZeroSamples(file)
			if !c.full {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrNotZero)
			require.ErrorContains(t, err, fmt.Sprintf("blkdiscard --zeroout %s", file))
		})
	}
	require.ErrorContains(t, CheckZeroSamples(file+"-gone"), "cannot tell whether it is blank")
	require.NoError(t, os.Truncate(file, 100))
	require.ErrorContains(t, CheckZeroSamples(file), "cannot tell whether it is blank")
}
