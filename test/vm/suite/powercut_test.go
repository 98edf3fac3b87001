//go:build vm

package suite

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	target  = "/var/lib/kubelet/pods/1/volumes/data"
	size    = 64 << 20
	options = `{"volumeGroup":"flexlvm","size":"67108864","kubernetes.io/fsType":"xfs","kubernetes.io/readwrite":"rw",` +
		`"kubernetes.io/pvOrVolumeName":"VOLUME","kubernetes.io/pod.namespace":"default","layout":LAYOUT}`
)

// powered is a node whose power can fail, with the layout and name of its volume and the number of its
// calls, which use both drivers in turn.
type powered struct {
	*vm.Machine
	t              *testing.T
	layout, volume string
	calls          int
}

// eachLayout runs a test for volumes of the layouts, each on its own node, and in a campaign (`make
// campaign`) for all layouts.
func eachLayout(t *testing.T, test func(t *testing.T, m *powered), layouts ...string) {
	t.Helper()
	slots.Group(t)
	if inFull() {
		layouts = []string{"linear", "thin", "striped", "raid1", "directory"}
	}
	for _, layout := range layouts {
		t.Run(layout, func(t *testing.T) {
			slots.Parallel(t, 0) // each node does one thing at a time
			m := &powered{Machine: start(t, vm.Config{
				// Raw images that honour flushes: what the guest has flushed survives the cut.
				Disks: []vm.Disk{{Size: 2 << 30}, {Size: 2 << 30}},
				Files: map[string]string{"/flexlvm": build(t, "flexlvm", "build"), "/csicall": build(t, "csicall", "build")},
			}), t: t, layout: layout, volume: "pvc-1"}
			m.sh("/flexlvm vg create " + m.groupFlags() + " /dev/vda /dev/vdb")
			if layout == "directory" {
				m.sh("/flexlvm directories create --size 1GiB")
			}
			test(t, m)
		})
	}
}

// inFull reports whether this is a campaign, which may take long.
func inFull() bool { return os.Getenv("FLEXLVM_CAMPAIGN") != "" }

func (m *powered) options() string {
	layout := `"` + m.layout + `"`
	switch m.layout {
	case "thin":
		layout += `,"thinPool":"thinpool"`
	case "directory":
		layout += `,"directoryPool":"directories"`
	}
	return strings.NewReplacer("LAYOUT", layout, "VOLUME", m.volume).Replace(options)
}

// next makes the next mount create a volume.
func (m *powered) next() {
	m.t.Helper()
	if m.layout == "directory" { // beside the existing ones
		m.volume += "-next"
		m.sh("umount " + target + " 2>/dev/null; sync")
		return
	}
	m.sh("umount " + target + " 2>/dev/null; lvremove -q -y flexlvm/pvc-1 && rm -rf /var/lib/flexlvm && sync")
}

// found returns the state in which the volume exists, or "nothing".
func (m *powered) found() string {
	m.t.Helper()
	if m.layout == "directory" {
		if m.listed() == 0 {
			return "nothing"
		}
		return "there"
	}
	return m.sh("lvs --noheadings -o lv_tags flexlvm | grep -o 'state=[a-z]*' || echo nothing")
}

// requireOne checks that exactly one volume has its name.
func (m *powered) requireOne() {
	m.t.Helper()
	if m.layout == "directory" {
		require.Equal(m.t, 1, m.listed())
		return
	}
	// LVM warns of metadata that a cut left older on one disk than on the other.
	require.Equal(m.t, "pvc-1", m.sh("lvs --noheadings -o lv_name -S 'lv_name!=thinpool' flexlvm 2>/dev/null | tr -d ' '"))
}

// listed returns how often the volume is in the node's list.
func (m *powered) listed() (n int) {
	m.t.Helper()
	for line := range strings.Lines(m.sh("/flexlvm volumes list")) {
		if slices.Contains(strings.Fields(line), m.volume) {
			n++
		}
	}
	return n
}

// groupFlags returns the flags with which the layout's group is created.
func (m *powered) groupFlags() string {
	if m.layout == "thin" {
		return "--thin"
	}
	return ""
}

// mount returns a command that mounts the volume as kubelet does, through the driver whose turn it is.
func (m *powered) mount() string {
	m.calls++
	call := "/flexlvm mount"
	if m.calls%2 == 0 {
		call = "/csicall mount"
	}
	return "mkdir -p " + target + " && " + call + " " + target + " '" + m.options() + "'"
}

// mounts mounts the volume through the driver whose turn it is.
func (m *powered) mounts() {
	m.t.Helper()
	require.Contains(m.t, []string{`{"status":"Success"}`, ""}, m.sh(m.mount()))
}

func (m *powered) try(script string) (string, bool) {
	m.t.Helper()
	res, err := m.Exec(m.t.Context(), vm.Command{Args: []string{"sh", "-c", script}})
	require.NoError(m.t, err)
	return strings.TrimSpace(string(res.Stdout) + string(res.Stderr)), res.ExitCode == 0
}

func (m *powered) sh(script string) string {
	m.t.Helper()
	out, ok := m.try(script)
	require.True(m.t, ok, "%s: %s", script, out)
	return out
}

func (m *powered) boot() {
	m.t.Helper()
	require.NoError(m.t, m.Boot(m.t.Context()))
}

// Power fails at several instants of a first mount, once at least after the volume was begun. After the
// boot kubelet calls again, and there is one volume of the right size.
func TestPowerCutDuringFirstMount(t *testing.T) {
	var begun atomic.Bool
	t.Cleanup(func() { require.True(t, t.Failed() || begun.Load(), "all cuts were before the volume was begun") })
	eachLayout(t, func(t *testing.T, m *powered) {
		if testPowerCutDuringFirstMount(t, m) {
			begun.Store(true)
		}
	}, "linear", "thin", "directory")
}

// testPowerCutDuringFirstMount reports whether a cut was after the volume was begun.
func testPowerCutDuringFirstMount(t *testing.T, m *powered) bool {
	begin := time.Now()
	m.mounts()
	whole := time.Since(begin)
	states := map[string]int{}
	rounds := 2
	if inFull() {
		rounds = 6
	}
	cuts := 0
	for ; cuts < rounds || states["nothing"] == cuts && cuts < 3*rounds; cuts++ {
		m.next()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		mount := m.mount()
		if cuts%2 == 1 {
			mount = m.mount() // with the other driver than in the round before
		}
		go func() {
			defer close(ended)
			_, _ = m.Exec(ctx, vm.Command{Args: []string{"sh", "-c", mount}})
		}()
		<-time.After(whole * time.Duration(2*cuts+1) / time.Duration(2*rounds)) // the middle of each part
		m.PowerCut()
		cancel()
		<-ended
		m.boot()
		states[m.found()]++

		m.mounts()
		m.requireOne()
		require.Equal(t, fmt.Sprint(size), m.sh("df -B1 --output=size "+target+" | tail -1 | tr -d ' '"))
		require.Equal(t, fmt.Sprint(size), m.sh("cd "+target+" && dd if=/dev/zero of=f bs=1M 2>/dev/null; stat -c %s f"))
	}
	t.Logf("after the cut the volume was found as: %v (a whole mount takes %s)", states, whole)
	return states["nothing"] < cuts
}

// Data that a pod has fsynced survives a power cut.
func TestPowerCutKeepsWhatWasSynced(t *testing.T) {
	eachLayout(t, testPowerCutKeepsWhatWasSynced, "linear")
}

func testPowerCutKeepsWhatWasSynced(t *testing.T, m *powered) {
	m.mounts()
	sum := m.sh("cd " + target + " && dd if=/dev/urandom of=db bs=1M count=16 conv=fsync 2>/dev/null && sync db . && md5sum db")
	go func() {
		// Other writes are in progress when the power fails.
		_, _ = m.Exec(t.Context(), vm.Command{Args: []string{"sh", "-c", "cd " + target + "; while :; do dd if=/dev/urandom of=more bs=64k count=64 2>/dev/null; done"}})
	}()
	<-time.After(time.Second)
	m.PowerCut()
	m.boot()
	m.mounts()
	require.Equal(t, sum, m.sh("cd "+target+" && md5sum db"))
	require.Equal(t, fmt.Sprint(size), m.sh("df -B1 --output=size "+target+" | tail -1 | tr -d ' '"))
}

// A growth whose success was returned to kubelet survives a power cut.
func TestPowerCutAfterGrowth(t *testing.T) {
	eachLayout(t, testPowerCutAfterGrowth, "thin", "directory")
}

func testPowerCutAfterGrowth(t *testing.T, m *powered) {
	m.mounts()
	grow := func(to string) {
		if m.calls%2 == 0 {
			m.sh("/csicall expand " + target + " '" + m.options() + "' " + to)
			return
		}
		expand := strings.Replace(m.options(), `,"kubernetes.io/pod.namespace":"default"`, "", 1)
		require.Contains(t, m.sh("/flexlvm expandfs '"+expand+"' '' "+target+" "+to+" 67108864"), `"status":"Success"`)
	}
	for _, grown := range []string{"104857600", "157286400"} { // once through each driver
		grow(grown)
		m.PowerCut()
		m.boot()
		m.mounts()
		require.Equal(t, grown, m.sh("df -B1 --output=size "+target+" | tail -1 | tr -d ' '"))
		require.Equal(t, grown, m.sh("cd "+target+" && dd if=/dev/zero of=f bs=1M 2>/dev/null; stat -c %s f"))
	}
}
