//go:build vm

package suite

import (
	"bytes"
	"context"
	"math/rand"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/vm"
)

const (
	// makeSource writes 400 files of 32 KiB, and one of 36 MiB that follows them by name and is fetched
	// in ranges.
	makeSource = `mkfs.xfs -q -f /dev/vdc && mount /dev/vdc /mnt && mkdir /mnt/many && head -c $((400*32768)) /dev/urandom >/mnt/all &&
		split -b 32768 -a 3 -d /mnt/all /mnt/many/f- && rm /mnt/all && head -c $((36<<20)) /dev/urandom >/mnt/the-large-one && umount /mnt`
	dataset = target + "/set"
	// fetchSlowly takes some seconds, in which the power can fail.
	fetchSlowly = "/fetch --progress none --bandwidth 2Mi file:///mnt/ " + dataset
	// listed prints the files in the manifest.
	listed = "sed -n 's/.*\"path\":\"\\([^\"]*\\)\".*}$/\\1/p' " + dataset + "/.flexlvm/manifest.jsonl 2>/dev/null || true"
	// named prints the files that have their final names.
	named = "cd " + dataset + " 2>/dev/null && find . -path ./.flexlvm -prune -o -type f -print || true"
)

// TestPowerCutDuringFetch cuts the power while a dataset is loaded. The files in the manifest are there
// after the cut, each file with its final name is complete, and the next run fetches the rest.
func TestPowerCutDuringFetch(t *testing.T) {
	slots.Parallel(t, 0)
	m := &powered{Machine: start(t, vm.Config{
		Disks: []vm.Disk{{Size: 2 << 30}, {Size: 2 << 30}, {Size: 1 << 30}},
		Files: map[string]string{"/flexlvm": build(t, "flexlvm", "build"), "/csicall": build(t, "csicall", "build"), "/fetch": build(t, "fetch", "build")},
	}), t: t, layout: "linear", volume: "pvc-1"}
	m.sh("/flexlvm vg create /dev/vda /dev/vdb && " + makeSource)
	up := func() {
		t.Helper()
		m.sh(m.mount() + " && mount -o ro /dev/vdc /mnt")
	}
	same := func(files string) {
		t.Helper()
		bad := m.sh("cd " + dataset + " && while read -r f; do cmp \"$f\" \"/mnt/$f\"; done <<'LIST' 2>&1 || true\n" + files + "\nLIST\n")
		require.Empty(t, bad)
	}
	up()
	cuts := []int{200}
	if inFull() {
		cuts = []int{0, 1, 200, 400}
	}
	for _, lines := range cuts {
		m.sh("rm -rf " + dataset)
		seen := m.cutWhenListed(lines)
		m.boot()
		up()
		whole, promised := m.sh(named), m.sh(listed)
		t.Logf("cut with %d files in the manifest; then %d have their names and %d are in it", count(seen), count(whole), count(promised))
		require.NotContains(t, m.sh("ls "+dataset+"/.flexlvm 2>/dev/null || true"), "complete")
		for _, files := range []string{seen, promised, strings.ReplaceAll(whole, "./", "")} {
			if files != "" {
				same(files)
			}
		}
		m.sh("/fetch --progress none file:///mnt/ " + dataset)
		m.requireComplete()
	}
	m.PowerCut()
	m.boot()
	up()
	m.requireComplete()
}

// cutWhenListed starts to fetch, cuts the power when so many files are in the manifest, and returns
// them.
func (m *powered) cutWhenListed(lines int) (seen string) {
	m.t.Helper()
	ctx, cancel := context.WithCancel(m.t.Context())
	defer cancel()
	ended := make(chan struct{})
	var said bytes.Buffer
	go func() {
		defer close(ended)
		_, _ = m.Exec(ctx, vm.Command{Args: []string{"sh", "-c", fetchSlowly}, Stdout: &said, Stderr: &said}) // it is cut off
	}()
	time.Sleep(time.Duration(rand.Int63n(int64(time.Second))))
	for end := time.Now().Add(5 * time.Minute); count(seen) < lines; time.Sleep(20 * time.Millisecond) {
		select {
		case <-ended:
			require.GreaterOrEqual(m.t, count(m.sh(listed)), lines, "the fetch has ended: %s", &said)
		default:
		}
		require.True(m.t, time.Now().Before(end), "only %d files are in the manifest", count(seen))
		seen = m.sh(listed)
	}
	m.PowerCut()
	cancel()
	<-ended
	return seen
}

func (m *powered) requireComplete() {
	m.t.Helper()
	m.sh("test -e " + dataset + "/.flexlvm/complete && diff -r --exclude=.flexlvm /mnt " + dataset)
	require.Equal(m.t, strconv.Itoa(401), m.sh("{ "+listed+"; } | sort -u | wc -l"))
}

func count(lines string) int { return len(strings.Fields(lines)) }
