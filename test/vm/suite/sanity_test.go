//go:build vm

package suite

import (
	"bytes"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/vm"
)

// skipped are those of CSI's tests that do not run here, by what their names hold, and why.
var skipped = map[string]string{
	"NodeStageVolume":   "nothing is staged: each pod's mount is the volume's own",
	"NodeUnstageVolume": "nothing is staged: each pod's mount is the volume's own",
	// The rest is of controller services, and ours makes no volumes: the provisioner does.
	// The one that the tests talk to stands in for it, and passes on what ours does.
	"GetCapacity":                "the provisioner publishes the room of nodes as CSIStorageCapacity",
	"ListVolumes":                "PersistentVolumes are the list",
	"source volume":              "a copy is made by the provisioner, which knows the claims",
	"ControllerPublishVolume":    "a local disk is not attached",
	"ControllerUnpublishVolume":  "a local disk is not attached",
	"volume lifecycle":           "a local disk is not attached",
	"accessibility requirements": "a snapshot lies where its volume does",
	"GetSnapshot":                "ListSnapshots tells of one, too",
	"ControllerGetVolumeHealth":  "the node reports the health of its volumes",
	"ControllerListVolumeHealth": "the node reports the health of its volumes",
	"pagination should detect":   "CSI's tests leave it out themselves",
}

// report is what CSI's tests say of themselves, as JUnit has it.
type report struct {
	Suites []struct {
		Cases []struct {
			Name    string `xml:"name,attr"`
			Status  string `xml:"status,attr"`
			Failure *struct {
				Message string `xml:"message,attr"`
				Text    string `xml:",chardata"`
			} `xml:"failure"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

const sanityScript = `
vgcreate --yes flexlvm /dev/vda /dev/vdb
mkdir -p /registry /pods
/csi --node-name=node-1 --host-namespaces=false --socket=/registry/flexlvm.io.sock --log-format=text --log-level=debug >/csi.log 2>&1 &
driver=$!
/csicontroller --listen=/controller.sock --driver=/registry/flexlvm.io.sock &
for i in $(seq 100); do [ -S /registry/flexlvm.io.sock ] && [ -S /controller.sock ] && break; sleep 0.1; done
echo 'writeBps: 50Mi' >/limits.yaml
echo 'reserve: 10%' >/snapshots.yaml
/csi-sanity --csi.testsnapshotparameters=/snapshots.yaml --csi.testvolumemutableparameters=/limits.yaml --csi.endpoint=/controller.sock --csi.mountdir=/pods/mount --csi.stagingdir=/pods/staging --csi.testvolumesize=134217728 \
  --csi.testvolumeexpandsize=268435456 --ginkgo.junit-report=/report.xml --ginkgo.no-color || failed=$?
/csi-sanity --csi.testvolumeaccesstype=block --csi.endpoint=/controller.sock --csi.mountdir=/pods/device --csi.stagingdir=/pods/staging --csi.testvolumesize=134217728 \
  --csi.testvolumeexpandsize=268435456 --ginkgo.focus='Node Service' --ginkgo.junit-report=/block.xml --ginkgo.no-color || failed=$?
kill $driver; wait $driver
lvs --noheadings flexlvm >/left
exit ${failed:-0}
`

// TestCSISanity runs CSI's own tests against the CSI driver on a real volume group, those of nodes
// with raw block volumes, too. What is not tested is listed above, and nothing else is.
func TestCSISanity(t *testing.T) {
	t.Parallel()
	root, err := vm.SourceDir()
	require.NoError(t, err)
	sanity, err := built.Module(t.Context(), filepath.Join(root, "test/vm/sanity"), "csi-sanity", "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity", os.Stderr)
	require.NoError(t, err)
	m := start(t, vm.Config{Disks: disks()[:2], Files: map[string]string{
		"/csi": build(t, "csi", "build"), "/csicontroller": build(t, "csicontroller", "build"), "/csi-sanity": sanity,
	}})
	read := func(file string) []byte {
		var out bytes.Buffer
		_, err := m.Exec(t.Context(), vm.Command{Args: []string{"cat", file}, Stdout: &out})
		require.NoError(t, err)
		return out.Bytes()
	}
	defer func() {
		if t.Failed() {
			t.Logf("the driver:\n%s", read("/csi.log"))
		}
	}()
	run(t, m, nil, "sh", "-uc", sanityScript)

	requireSane(t, read("/report.xml"), "", 66)
	requireSane(t, read("/block.xml"), "Node Service", 15)
	require.Empty(t, strings.TrimSpace(string(read("/left"))), "a volume was left behind")
}

// requireSane checks what those of CSI's tests say of themselves that hold about in their names:
// nothing fails, so many pass at least, and what does not run is listed above.
func requireSane(t *testing.T, text []byte, about string, passed int) {
	t.Helper()
	var got report
	require.NoError(t, xml.Unmarshal(text, &got))
	require.Len(t, got.Suites, 1)
	count := map[string]int{}
	for _, c := range got.Suites[0].Cases {
		if strings.HasPrefix(c.Name, "[BeforeSuite]") || strings.HasPrefix(c.Name, "[AfterSuite]") || !strings.Contains(c.Name, about) {
			continue
		}
		count[c.Status]++
		switch c.Status {
		case "passed":
		case "skipped", "pending":
			why := ""
			for part, reason := range skipped {
				if strings.Contains(c.Name, part) {
					why = reason
				}
			}
			t.Logf("skipped: %s: %s", c.Name, why)
			require.NotEmpty(t, why, "%s does not run, and nobody says why", c.Name)
		default:
			require.Fail(t, c.Name, "%+v", c.Failure)
		}
	}
	t.Logf("CSI's tests: %v", count)
	require.GreaterOrEqual(t, count["passed"], passed)
}
