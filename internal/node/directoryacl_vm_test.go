//go:build vm

package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// aclsVariable names a directory, in which the process creates as many files as it can and gives each the
// largest ACL.
const aclsVariable = "FLEXLVM_TEST_ACLS"

// aclEntries is the largest number of entries that XFS allows in an ACL, 64 KiB of them.
const aclEntries = 5461

// setACLs creates all files first, because none can be created beyond the quota. It prints how many got an
// ACL.
func setACLs(dir string) int {
	var files []string
	for {
		file := fmt.Sprintf("%s/%d", dir, len(files))
		f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		if err = errors.Join(err, f.Close()); err != nil {
			fmt.Print(err)
			return 1
		}
		files = append(files, file)
	}
	set := 0
	for _, file := range files {
		err := unix.Setxattr(file, "system.posix_acl_access", largestACL(), 0)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			continue
		}
		if err != nil {
			fmt.Printf("set the ACL of %s: %v", file, err)
			return 1
		}
		set++
	}
	if err := os.WriteFile(files[0], make([]byte, volume.Block), 0o600); !errors.Is(err, unix.ENOSPC) {
		fmt.Printf("what is written beyond the quota is not refused: %v", err)
		return 1
	}
	fmt.Print(set)
	return 0
}

// largestACL returns an ACL in the format of setxattr (linux/posix_acl_xattr.h): the owner, users, the
// owner's group, the mask and all others, all of whom may read.
func largestACL() []byte {
	const version, nobody = 2, 0xffffffff
	acl := binary.LittleEndian.AppendUint32(nil, version)
	entry := func(tag uint16, id uint32) {
		acl = binary.LittleEndian.AppendUint16(acl, tag)
		acl = binary.LittleEndian.AppendUint16(acl, 4)
		acl = binary.LittleEndian.AppendUint32(acl, id)
	}
	entry(0x01, nobody)
	for id := range uint32(aclEntries - 4) {
		entry(0x02, id)
	}
	for _, tag := range []uint16{0x04, 0x10, 0x20} {
		entry(tag, nobody)
	}
	return acl
}

// TestDirectoryACLs shows why a user namespace does not make it safe to give pods directory volumes: ACLs are
// counted, but not limited, so a volume can use many times its size of the pool that it shares with others.
// If the kernel limits them some day, this test fails: then decision 020, and whether classes still have to
// say trustPods, can be reconsidered.
func TestDirectoryACLs(t *testing.T) {
	m := newMachine(t)
	m.directories(volume.MinDirectoryPool)
	s := directorySpec("data", volume.MinDirectory)
	dir := m.mount(s, "pod")
	m.shell("chmod 711 /tmp %[1]s %[1]s/.. %[1]s/../.. %[1]s/../../.. ; chmod 755 /node.test || true; chown %[2]d:%[2]d %[1]s", dir, tenant)
	before, _ := m.pool()

	out, err := runAs(t, aclsVariable, dir, inUserNamespace())
	require.NoError(t, err, out)
	require.Equal(t, "63", out, "files that got their ACL: the kernel may hold ACLs to the quota by now")
	var used quota.Usage
	id := m.projectOf(s.Name)
	m.opened(func(p *directoryPool) (err error) {
		used, err = quota.ReadOf(p.device.Path, id)
		return err
	})
	t.Logf("a volume of %s takes %s", used.Limit.Size, used.Used)
	require.Equal(t, volume.MinDirectory, used.Limit.Size)
	require.Greater(t, used.Used, 8*volume.MinDirectory)
	after, _ := m.pool()
	require.Equal(t, before.Free-(used.Used-volume.MinDirectory), after.Free, "what it takes is promised to others")
}
