//go:build cluster

package gc_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// undeleteLine matches the line that a dry run omits.
var undeleteLine = regexp.MustCompile(`(?m)^.*flexlvm\.io/undelete.*\n`)

// testAdopted follows docs/adoption.md: a person's logical volume becomes a pod's volume, and is handed
// back.
func (b *bed) testAdopted(t *testing.T) {
	s := b.space(t, "wiki")
	// The files are named as the pod's own would be (diligent).
	sum := b.onNode(t, `lvcreate -qq -y --addtag theirs -L 400M -n wiki `+wide+`; mkfs.xfs -q /dev/`+wide+`/wiki; mkdir -p /srv/wiki; mount /dev/`+wide+`/wiki /srv/wiki
		cd /srv/wiki; dd if=/dev/urandom of=proof bs=1M count=2 2>/dev/null; md5sum proof | sed 's|proof|pages/proof|' | tee sum`)
	adopt := driver + " volumes adopt " + wide + "/wiki --namespace wiki --cluster " + b.uid + " --claim pages --storage-class " + kept
	_, err := b.Node(t.Context(), node, "sh", "-c", adopt)
	require.Error(t, err, "it is mounted")
	b.onNode(t, "umount /srv/wiki; udevadm settle") // udev reads what mkfs has written, with the device open

	dry := b.onNode(t, adopt+" --dry-run")
	require.Equal(t, volume.State(""), b.stateOf(t, "wiki"), "--dry-run changes nothing")
	manifests := b.onNode(t, adopt)
	require.NotContains(t, dry, "flexlvm.io/undelete", "applied, a dry run brings nothing back")
	require.Equal(t, dry, undeleteLine.ReplaceAllString(manifests, ""))
	require.Equal(t, volume.Retained, b.stateOf(t, "wiki"), "nobody gets it yet, and nobody removes it")
	b.apply(t, manifests)
	b.becomes(t, "wiki", volume.Ready)
	b.kubectl(t, "-n", s.name, "wait", "pvc/pages", "--for=jsonpath={.status.phase}=Bound", "--timeout=240s")
	b.event(t, s.name, "PersistentVolumeClaim", "pages", "VolumeUndeleted")
	s.pod("main", "pages")
	s.running("main")
	require.Equal(t, sum, s.sums("main"), "the pod finds what was there before")
	out, err := b.Node(t.Context(), node, "sh", "-c", driver+" volumes disown wiki 2>&1")
	require.Error(t, err, "a pod has it: %s", out)
	b.say(t, "the pod has found what was there before")

	// And handed back.
	s.end("main")
	s.deleteClaims("pages")
	b.kubectl(t, "delete", "pv", "wiki", "--timeout=240s")
	b.becomes(t, "wiki", volume.Retained)
	require.Contains(t, b.onNode(t, driver+" volumes disown wiki"), "is not a flexlvm volume any more")
	tags := b.onNode(t, "lvs --noheadings -o lv_tags "+wide+"/wiki")
	require.Equal(t, "theirs", strings.TrimSpace(tags))
	require.Equal(t, sum, b.onNode(t, "mount /dev/"+wide+"/wiki /srv/wiki; cd /srv/wiki; md5sum proof | sed 's|proof|pages/proof|'; cd /; umount /srv/wiki; lvremove -qq -y "+wide+"/wiki"))
}
