//go:build vm

package suite

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	target  = "/var/lib/kubelet/pods/1/volumes/data"
	size    = 64 << 20
	options = `{"volumeGroup":"flexlvm","size":"67108864","kubernetes.io/fsType":"xfs","kubernetes.io/readwrite":"rw",` +
		`"kubernetes.io/pvOrVolumeName":"pvc-1","kubernetes.io/pod.namespace":"default","layout":LAYOUT}`
)

// powered is a node whose power can fail, and the layout of its volume.
type powered struct {
	*vm.Machine
	t      *testing.T
	layout string
}

// eachLayout runs a test on nodes of their own: of volumes of some layouts, and of all
// where time does not matter (`make campaign`).
func eachLayout(t *testing.T, test func(t *testing.T, m powered), layouts ...string) {
	t.Helper()
	t.Parallel()
	if inFull() {
		layouts = []string{"linear", "thin", "striped", "raid1"}
	}
	binary := build(t, "flexlvm", "build")
	for _, layout := range layouts {
		t.Run(layout, func(t *testing.T) {
			t.Parallel() // each node does one thing at a time
			m := powered{start(t, vm.Config{
				// Raw images with flushes honoured: what the guest has flushed is there
				// after the cut.
				Disks: []vm.Disk{{Size: 2 << 30}, {Size: 2 << 30}},
				Files: map[string]string{"/flexlvm": binary},
			}), t, layout}
			m.sh("/flexlvm vg create " + m.groupFlags() + " /dev/vda /dev/vdb")
			test(t, m)
		})
	}
}

// inFull reports whether time does not matter.
func inFull() bool { return os.Getenv("FLEXLVM_CAMPAIGN") != "" }

func (m powered) options() string {
	layout := `"` + m.layout + `"`
	if m.layout == "thin" {
		layout += `,"thinPool":"thinpool"`
	}
	return strings.Replace(options, "LAYOUT", layout, 1)
}

// groupFlags are what the layout's group is made with.
func (m powered) groupFlags() string {
	if m.layout == "thin" {
		return "--thin"
	}
	return ""
}

// mount is the command that kubelet runs.
func (m powered) mount() string {
	return "mkdir -p " + target + " && /flexlvm mount " + target + " '" + m.options() + "'"
}

func (m powered) try(script string) (string, bool) {
	m.t.Helper()
	res, err := m.Exec(m.t.Context(), vm.Command{Args: []string{"sh", "-c", script}})
	require.NoError(m.t, err)
	return strings.TrimSpace(string(res.Stdout) + string(res.Stderr)), res.ExitCode == 0
}

func (m powered) sh(script string) string {
	m.t.Helper()
	out, ok := m.try(script)
	require.True(m.t, ok, "%s: %s", script, out)
	return out
}

func (m powered) boot() {
	m.t.Helper()
	require.NoError(m.t, m.Boot(m.t.Context()))
}

// Power fails at a random instant of a first mount; after the boot kubelet calls
// again, and gets one volume of the right size.
func TestPowerCutDuringFirstMount(t *testing.T) {
	eachLayout(t, testPowerCutDuringFirstMount, "linear", "thin")
}

func testPowerCutDuringFirstMount(t *testing.T, m powered) {
	begin := time.Now()
	m.sh(m.mount())
	whole := time.Since(begin)
	states := map[string]int{}
	rounds := 2
	if inFull() {
		rounds = 6
	}
	for i := range rounds {
		m.sh("umount " + target + " 2>/dev/null; lvremove -q -y flexlvm/pvc-1 && rm -rf /var/lib/flexlvm && sync")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = m.Exec(ctx, vm.Command{Args: []string{"sh", "-c", m.mount()}})
		}()
		<-time.After(time.Duration(rand.Int63n(int64(whole))))
		m.PowerCut()
		cancel()
		<-ended
		m.boot()
		states[m.sh("lvs --noheadings -o lv_tags flexlvm | grep -o 'state=[a-z]*' || echo nothing")]++

		require.Contains(t, m.sh(m.mount()), `"status":"Success"`, "round %d", i)
		require.Equal(t, "pvc-1", m.sh("lvs --noheadings -o lv_name -S 'lv_name!=thinpool' flexlvm | tr -d ' '"))
		require.Equal(t, fmt.Sprint(size), m.sh("df -B1 --output=size "+target+" | tail -1 | tr -d ' '"))
		require.Equal(t, fmt.Sprint(size), m.sh("cd "+target+" && dd if=/dev/zero of=f bs=1M 2>/dev/null; stat -c %s f"))
	}
	t.Logf("after the cut the volume was found as: %v (a whole mount takes %s)", states, whole)
}

// What a pod has fsynced is there after a power cut.
func TestPowerCutKeepsWhatWasSynced(t *testing.T) {
	eachLayout(t, testPowerCutKeepsWhatWasSynced, "linear")
}

func testPowerCutKeepsWhatWasSynced(t *testing.T, m powered) {
	m.sh(m.mount())
	sum := m.sh("cd " + target + " && dd if=/dev/urandom of=db bs=1M count=16 conv=fsync 2>/dev/null && sync db . && md5sum db")
	go func() {
		// More is being written when the power fails.
		_, _ = m.Exec(t.Context(), vm.Command{Args: []string{"sh", "-c", "cd " + target + "; while :; do dd if=/dev/urandom of=more bs=64k count=64 2>/dev/null; done"}})
	}()
	<-time.After(time.Second)
	m.PowerCut()
	m.boot()
	m.sh(m.mount())
	require.Equal(t, sum, m.sh("cd "+target+" && md5sum db"))
	require.Equal(t, fmt.Sprint(size), m.sh("df -B1 --output=size "+target+" | tail -1 | tr -d ' '"))
}

// A growth that kubelet was told of is there after a power cut.
func TestPowerCutAfterGrowth(t *testing.T) { eachLayout(t, testPowerCutAfterGrowth, "thin") }

func testPowerCutAfterGrowth(t *testing.T, m powered) {
	m.sh(m.mount())
	const grown = "104857600"
	expand := strings.Replace(m.options(), `,"kubernetes.io/pod.namespace":"default"`, "", 1)
	require.Contains(t, m.sh("/flexlvm expandfs '"+expand+"' '' "+target+" "+grown+" 67108864"), `"status":"Success"`)
	m.PowerCut()
	m.boot()
	m.sh(m.mount())
	require.Equal(t, grown, m.sh("df -B1 --output=size "+target+" | tail -1 | tr -d ' '"))
	require.Equal(t, grown, m.sh("cd "+target+" && dd if=/dev/zero of=f bs=1M 2>/dev/null; stat -c %s f"))
}
