//go:build vm

package suite

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm"
)

// encryptedDir holds the engine's files of the test of encrypted volumes.
const encryptedDir = "/var/lib/flexlvm-test"

// encryptedMount returns a command that mounts an encrypted volume with a key, as a file system or,
// with the option of a raw block volume, as a device.
func encryptedMount(name, key, option string) string {
	return fmt.Sprintf(`mkdir -p %[1]s && FLEXLVM_TEST_CSI_CALL='{"Dir":"%[1]s","Verb":"mount","Target":"%[1]s/pods/%[2]s","Key":"%[3]s",
		"Spec":{"Group":"flexlvm-test","Name":"%[2]s","Size":%[4]d,"Layout":"linear","Kind":"claim","Namespace":"default","Encrypted":true%[5]s}}' /csidoor.test`,
		encryptedDir, name, key, size, option)
}

// Power fails at several instants of the first mounts of an encrypted volume and an encrypted raw block
// volume, once at least after a volume was begun. After the boot, kubelet calls again with the same key. Data
// that a pod then syncs to either volume survives another power cut during writes to both. A wrong key changes
// nothing.
func TestPowerCutOfEncryptedVolume(t *testing.T) {
	slots.Parallel(t, 0)
	binary := build(t, "csidoor.test", "test", "-c", "-tags", "vm")
	m := &powered{Machine: start(t, vm.Config{Disks: []vm.Disk{{Size: 2 << 30}}, Files: map[string]string{"/csidoor.test": binary}}), t: t, layout: "linear"}
	m.sh("vgcreate --yes -q flexlvm-test /dev/vda")
	const right, wrong, block = "a key of more than thirty-two bytes", "another key of more than thirty-two bytes", `,"FSType":"block"`
	mount := encryptedMount("data", right, "") + " && " + encryptedMount("raw", right, block)
	const device, files = encryptedDir + "/pods/raw", encryptedDir + "/pods/data"
	begin := time.Now()
	m.sh(mount)
	whole := time.Since(begin)
	rounds := 2
	if inFull() {
		rounds = 10
	}
	begun := false
	for i := 0; i < rounds || !begun && i < 2*rounds; i++ { // later cuts if all were too early, as on a machine that became slow
		m.sh("umount " + files + " " + device + ` 2>/dev/null; for t in linear crypt; do for c in $(dmsetup ls --target $t | grep -o '^flexlvm-\(block\|crypt\)-[A-Za-z0-9-]*'); do dmsetup remove $c; done; done
			lvremove -q -y flexlvm-test && rm -rf ` + encryptedDir + "; sync")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = m.Exec(ctx, vm.Command{Args: []string{"sh", "-c", mount}})
		}()
		<-time.After(whole * time.Duration(2*i+1) / time.Duration(2*rounds)) // the middle of each part
		m.PowerCut()
		cancel()
		<-ended
		m.boot()
		found := m.sh("lvs --noheadings -o lv_name,lv_tags flexlvm-test | grep -o '^ *[a-z]*\\|state=[a-z]*' | xargs")
		begun = begun || found != ""
		t.Logf("after the cut the volumes were found as: %s (both mounts take %s)", found, whole)
		m.sh(mount)
		m.sh(fmt.Sprintf("cmp -n %d %s /dev/zero", size, device))
		const sums = "cd " + files + " && md5sum db && head -c 16777216 " + device + " | md5sum"
		m.sh("cd " + files + " && dd if=/dev/urandom of=db bs=1M count=16 conv=fsync 2>/dev/null && sync db . && dd if=/dev/urandom of=" + device + " bs=1M count=16 conv=notrunc,fsync 2>/dev/null")
		sum := m.sh(sums)
		writing := make(chan struct{})
		go func() {
			defer close(writing)
			_, _ = m.Exec(t.Context(), vm.Command{Args: []string{"sh", "-c",
				"while :; do dd if=/dev/urandom of=" + files + "/more bs=64k count=64; dd if=/dev/urandom of=" + device + " bs=64k seek=256 count=64 conv=notrunc; done 2>/dev/null"}})
		}()
		<-time.After(time.Second)
		m.PowerCut()
		<-writing
		m.boot()
		header := m.sh("lvchange -ay flexlvm-test && head -c 16777216 /dev/flexlvm-test/raw | md5sum")
		said, ok := m.try(encryptedMount("raw", wrong, block))
		require.False(t, ok, "a wrong key")
		require.Contains(t, said, "the key of volume flexlvm-test/raw is wrong, and nothing was changed")
		require.Equal(t, header, m.sh("head -c 16777216 /dev/flexlvm-test/raw | md5sum"))
		m.sh(mount)
		require.Equal(t, sum, m.sh(sums), "round %d", i)
		require.Equal(t, fmt.Sprint(size), m.sh("df -B1 --output=size "+files+" | tail -1 | tr -d ' '"))
		require.Equal(t, fmt.Sprint(size), m.sh("blockdev --getsize64 "+device))
	}
	require.True(t, begun, "all cuts were before a volume was begun")
}
