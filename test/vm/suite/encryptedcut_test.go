//go:build vm

package suite

import (
	"context"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm"
)

// Power fails at a random instant of the first mount of an encrypted volume; after the boot
// kubelet calls again with the same key, and what a pod then syncs is there after another cut.
func TestPowerCutOfEncryptedVolume(t *testing.T) {
	t.Parallel()
	binary := build(t, "csidoor.test", "test", "-c", "-tags", "vm")
	m := &powered{Machine: start(t, vm.Config{Disks: []vm.Disk{{Size: 2 << 30}}, Files: map[string]string{"/csidoor.test": binary}}), t: t, layout: "linear"}
	m.sh("vgcreate --yes -q flexlvm-test /dev/vda")
	const dir = "/var/lib/flexlvm-test"
	mount := fmt.Sprintf(`mkdir -p %[1]s && FLEXLVM_TEST_CSI_CALL='{"Dir":"%[1]s","Verb":"mount","Target":"%[1]s/pods/a","Key":"a key of more than thirty-two bytes",
		"Spec":{"Group":"flexlvm-test","Name":"data","Size":67108864,"Layout":"linear","Kind":"claim","Namespace":"default","Encrypted":true}}' /csidoor.test`, dir)
	begin := time.Now()
	m.sh(mount)
	whole := time.Since(begin)
	rounds := 2
	if inFull() {
		rounds = 10
	}
	for i := range rounds {
		m.sh("umount " + dir + "/pods/a 2>/dev/null; for c in $(dmsetup ls --target crypt | grep -o '^flexlvm-crypt-[A-Za-z0-9]*'); do cryptsetup close $c; done; lvremove -q -y flexlvm-test/data; rm -rf " + dir + "; sync")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = m.Exec(ctx, vm.Command{Args: []string{"sh", "-c", mount}})
		}()
		<-time.After(time.Duration(rand.Int63n(int64(whole))))
		m.PowerCut()
		cancel()
		<-ended
		m.boot()
		m.sh(mount)
		sum := m.sh("cd " + dir + "/pods/a && dd if=/dev/urandom of=db bs=1M count=16 conv=fsync 2>/dev/null && sync db . && md5sum db")
		m.PowerCut()
		m.boot()
		m.sh(mount)
		require.Equal(t, sum, m.sh("cd "+dir+"/pods/a && md5sum db"), "round %d", i)
		require.Equal(t, fmt.Sprint(size), m.sh("df -B1 --output=size "+dir+"/pods/a | tail -1 | tr -d ' '"))
	}
}
