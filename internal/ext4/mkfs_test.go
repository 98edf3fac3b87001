package ext4

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestPrograms(t *testing.T) {
	var ran []string
	record := commandtest.Func(func(argv ...string) (string, error) {
		ran = append(ran, strings.Join(argv, " "))
		return "", nil
	})
	require.NoError(t, Mkfs(t.Context(), record, Format{Device: "/dev/mapper/flexlvm-a", UUID: uuid, Size: volume.GiB}))
	require.NoError(t, SetUUID(t.Context(), record, "/dev/mapper/flexlvm-a", uuid))
	require.Equal(t, []string{
		"mke2fs -F -q -t ext4 -U " + uuid + " -b 4096 -I 256 -i 16384 -G 16 -m 0 -e remount-ro -J size=64" +
			" -O none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum,metadata_csum_seed,quota,project" +
			" -E nodiscard,lazy_itable_init=1,lazy_journal_init=0,quotatype=prjquota /dev/mapper/flexlvm-a",
		"tune2fs -O metadata_csum_seed -U " + uuid + " /dev/mapper/flexlvm-a",
	}, ran)
}
