//go:build vm

package discovery

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	utilsexec "k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/quota"
)

// FS_SYNC_FL, FS_DIRSYNC_FL, FS_XFLAG_PROJINHERIT and FS_XFLAG_EXTSZINHERIT (linux/fs.h).
const (
	syncFlag, dirSync             = 0x8, 0x10000
	projectInherit, sizeOfExtents = 0x200, 0x1000
)

func setAttributes(t *testing.T, dir string, a quota.Attributes) {
	t.Helper()
	f, err := os.Open(dir)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	require.NoError(t, quota.SetAttributes(f, a))
}

// Attributes that a tenant has set on the topmost directory are not inherited by the next tenant's
// files. They do not prevent deletion either, although directories of other projects cannot be moved
// into a directory whose project is inherited.
func TestMachineRestoresAttributes(t *testing.T) {
	for kind, c := range map[string]struct {
		mkfs, shown          string
		persons, tenants, in quota.Attributes
	}{
		"xfs": {
			mkfs: "mkfs.xfs -qf", shown: "xfs_io -r -c stat %s | grep fsxattr | grep -v nextents",
			tenants: quota.Attributes{Flags: syncFlag, ExtendedFlags: projectInherit | sizeOfExtents, ExtentSize: 8 << 20, Project: 7},
		},
		"ext4": {
			mkfs: "mkfs.ext4 -qF -O quota,project -E quotatype=prjquota", shown: "lsattr -dp %s",
			persons: quota.Attributes{ExtendedFlags: projectInherit, Project: 9},
			tenants: quota.Attributes{Flags: syncFlag | dirSync, ExtendedFlags: projectInherit, Project: 7},
		},
	} {
		t.Run(kind, func(t *testing.T) {
			base := t.TempDir()
			dir := filepath.Join(base, "fast")
			at := filepath.Join(dir, "one")
			shell(t, "mkdir -p %[1]s; %[2]s %[3]s; mount %[3]s %[1]s", at, c.mkfs, onLoop(t, filepath.Join(base, "file"), "512M"))
			t.Cleanup(func() { shell(t, "umount %s", at) })
			setAttributes(t, at, c.persons)
			m := NewMachine(utilsexec.New(), 0, 0, lvm.CheckNoUsers)
			class := Class{Name: "fast", Directory: dir, Files: true}
			f := found1(t, m, class)
			require.Empty(t, f.Problem)
			first, err := m.Owner(f)
			require.NoError(t, err)
			require.Equal(t, &c.persons, first.Attributes)
			shown := shell(t, c.shown, at)

			setAttributes(t, at, c.tenants)
			deep, other := at, c.tenants
			other.Project++
			for i := range 70 {
				deep = filepath.Join(deep, "d")
				require.NoError(t, os.Mkdir(deep, 0o755))
				if i >= maxDepth {
					setAttributes(t, deep, other)
				}
			}
			shell(t, "echo x >%s/file", deep)
			require.NotEqual(t, shown, shell(t, c.shown, at))
			require.NoError(t, m.Clean(t.Context(), f, class, Entry{Owner: first}, noProgress))
			require.NoError(t, m.CheckEmpty(f, first))
			again, err := m.Owner(f)
			require.NoError(t, err)
			require.Equal(t, first, again)
			require.Equal(t, shown, shell(t, c.shown, at))

			// A person who has deleted the files may have overlooked the attributes.
			setAttributes(t, at, c.tenants)
			require.ErrorContains(t, m.CheckEmpty(f, first), "when it was first offered or last cleaned")

			// Earlier releases recorded no attributes.
			old := Entry{Owner: &Owner{UID: first.UID, GID: first.GID, Mode: first.Mode}}
			require.NoError(t, m.CheckEmpty(f, old.Owner))
			require.NoError(t, m.Clean(t.Context(), f, class, old, noProgress))
			now, err := m.Owner(f)
			require.NoError(t, err)
			require.Equal(t, now, old.Clean().Owner)
			require.Zero(t, *now.Attributes)
		})
	}
}

// A cleaning that stops early leaves the directory under its quota, so the remaining files stay limited. That holds
// even if an earlier process was killed after it had removed the directory from its project.
func TestInterruptedCleaningKeepsTheProject(t *testing.T) {
	for kind, mkfs := range map[string]string{"xfs": "mkfs.xfs -qf", "ext4": "mkfs.ext4 -qF -O quota,project -E quotatype=prjquota"} {
		t.Run(kind, func(t *testing.T) {
			base := t.TempDir()
			dir := filepath.Join(base, "fast")
			at := filepath.Join(dir, "one")
			shell(t, "mkdir -p %[1]s; %[2]s %[3]s; mount %[3]s %[1]s", at, mkfs, onLoop(t, filepath.Join(base, "file"), "512M"))
			t.Cleanup(func() { shell(t, "umount %s", at) })
			person := quota.Attributes{ExtendedFlags: projectInherit, Project: 9}
			setAttributes(t, at, person)
			m := NewMachine(utilsexec.New(), 0, 0, lvm.CheckNoUsers)
			class := Class{Name: "fast", Directory: dir, Files: true}
			f := found1(t, m, class)
			first, err := m.Owner(f)
			require.NoError(t, err)
			require.Equal(t, person, *first.Attributes)

			deep, other := at, person
			other.Project++
			for i := range maxDepth + 5 {
				deep = filepath.Join(deep, "d")
				require.NoError(t, os.Mkdir(deep, 0o755))
				if i >= maxDepth {
					setAttributes(t, deep, other)
				}
			}
			shell(t, "echo x >%[1]s/file; chattr +i %[1]s/file", deep)
			t.Cleanup(func() { shell(t, "find %s -type f -exec chattr -i {} +", at) })
			for range 2 { // the first pass moves the deep directory up, and the second finds it there
				require.ErrorContains(t, m.Clean(t.Context(), f, class, Entry{Owner: first}, noProgress), "immutable")
				require.Contains(t, shell(t, "ls %s", at), "cleaning")
				now, err := m.Owner(f)
				require.NoError(t, err)
				require.Equal(t, first, now)
				setAttributes(t, at, quota.Attributes{}) // as a process leaves it that was killed in between
			}
			shell(t, "find %s -type f -exec chattr -i {} +", at)
			require.NoError(t, m.Clean(t.Context(), f, class, Entry{Owner: first}, noProgress))
			now, err := m.Owner(f)
			require.NoError(t, err)
			require.Equal(t, first, now)
		})
	}
}
