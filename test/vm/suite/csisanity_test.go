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

// skipped lists the tests of csi-sanity that do not run here, by the reason.
var skipped = map[string][]string{
	"nothing is staged: each pod's mount is the volume's own": {
		"Node Service NodeStageVolume should fail when no volume id is provided",
		"Node Service NodeStageVolume should fail when no staging target path is provided",
		"Node Service NodeStageVolume should fail when no volume capability is provided",
		"Node Service NodeUnstageVolume should fail when no volume id is provided",
		"Node Service NodeUnstageVolume should fail when no staging target path is provided",
	},
	// The rest are tests of a controller service. flexlvm's creates no volumes, because the provisioner
	// does. The tests talk to test/vm/csicontroller, which stands in for the provisioner and passes
	// calls on to flexlvm's controller service.
	"the provisioner publishes the room of nodes as CSIStorageCapacity": {
		"Controller Service [Controller Server] GetCapacity should return capacity (no optional values added)",
	},
	"PersistentVolumes are the list": {
		"Controller Service [Controller Server] ListVolumes should return appropriate values (no optional values added)",
		"Controller Service [Controller Server] ListVolumes should fail when an invalid starting_token is passed",
		"Controller Service [Controller Server] ListVolumes check the presence of new volumes and absence of deleted ones in the volume list",
	},
	"CSI's tests leave it out themselves": {
		"Controller Service [Controller Server] ListVolumes pagination should detect volumes added between pages and accept tokens when the last volume from a page is deleted",
	},
	"a copy is made by the provisioner, which knows the claims": {
		"Controller Service [Controller Server] CreateVolume should create volume from an existing source volume",
		"Controller Service [Controller Server] CreateVolume should fail when the volume source volume is not found",
	},
	"a local disk is not attached": {
		"Controller Service [Controller Server] ControllerPublishVolume should fail when no volume id is provided",
		"Controller Service [Controller Server] ControllerPublishVolume should fail when no node id is provided",
		"Controller Service [Controller Server] ControllerPublishVolume should fail when no volume capability is provided",
		"Controller Service [Controller Server] ControllerPublishVolume should fail when publishing more volumes than the node max attach limit",
		"Controller Service [Controller Server] ControllerPublishVolume should fail when the volume does not exist",
		"Controller Service [Controller Server] ControllerPublishVolume should fail when the node does not exist",
		"Controller Service [Controller Server] ControllerPublishVolume should fail when the volume is already published but is incompatible",
		"Controller Service [Controller Server] volume lifecycle should work",
		"Controller Service [Controller Server] volume lifecycle should be idempotent",
		"Controller Service [Controller Server] ControllerUnpublishVolume should fail when no volume id is provided",
	},
	"a snapshot lies where its volume does": {
		"CreateSnapshot [Controller Server] should succeed when creating a snapshot with accessibility requirements",
	},
	"the node reports the health of its volumes": {
		"ControllerListVolumeHealth [Controller Server] should return appropriate response",
		"ControllerGetVolumeHealth [Controller Server] should fail when no volume id is provided",
		"ControllerGetVolumeHealth [Controller Server] should return health for a valid volume",
	},
	"ListSnapshots tells of one, too": {
		"GetSnapshot [Controller Server] should return an error",
		"GetSnapshot [Controller Server] should return snapshot that match the specified snapshot id",
		"GetSnapshot [Controller Server] should return an error when the specified snapshot id does not exist",
	},
}

// report is csi-sanity's JUnit report.
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
for i in $(seq 600); do [ -S /registry/flexlvm.io.sock ] && [ -S /controller.sock ] && break; sleep 0.1; done
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

// TestCSISanity runs csi-sanity against the CSI driver on a real volume group, its node tests with raw
// block volumes, too. Exactly the tests listed above are skipped.
func TestCSISanity(t *testing.T) {
	slots.Parallel(t, 40)
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

	requireSane(t, read("/report.xml"), "", 74)
	requireSane(t, read("/block.xml"), "Node Service", 22)
	require.Empty(t, strings.TrimSpace(string(read("/left"))), "a volume was left behind")
}

// requireSane checks the report of the tests whose names begin with about: none fails, at least so many
// pass, and those that do not run are listed above.
func requireSane(t *testing.T, text []byte, about string, passed int) {
	t.Helper()
	var got report
	require.NoError(t, xml.Unmarshal(text, &got))
	require.Len(t, got.Suites, 1)
	listed := map[string]string{}
	for why, names := range skipped {
		for _, name := range names {
			if strings.HasPrefix(name, about) {
				listed[name] = why
			}
		}
	}
	count := map[string]int{}
	for _, c := range got.Suites[0].Cases {
		name, test := strings.CutPrefix(c.Name, "[It] ")
		if !test || !strings.HasPrefix(name, about) {
			continue
		}
		count[c.Status]++
		switch c.Status {
		case "passed":
		case "skipped", "pending":
			require.Contains(t, listed, name, "it does not run, and nobody says why")
			t.Logf("skipped: %s: %s", name, listed[name])
			delete(listed, name)
		default:
			require.Fail(t, c.Name, "%+v", c.Failure)
		}
	}
	t.Logf("CSI's tests: %v", count)
	require.GreaterOrEqual(t, count["passed"], passed)
	require.Empty(t, listed, "these run, or are no more; take them from the list")
}
