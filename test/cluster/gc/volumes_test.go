//go:build cluster

package gc_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/await"
)

// A logicalVolume is a logical volume as the node's LVM reports it.
type logicalVolume struct {
	Group string `json:"vg_name"`
	Name  string `json:"lv_name"`
	UUID  string `json:"lv_uuid"`
	Tags  string `json:"lv_tags"`
	Size  string `json:"lv_size"`
}

func (lv logicalVolume) String() string { return lv.Group + "/" + lv.Name }

// state returns the state in the volume's tags, or doomed if its name says so.
func (lv logicalVolume) state() volume.State {
	if volume.Name(lv.Name).IsDoomed() {
		return volume.Doomed
	}
	for tag := range strings.SplitSeq(lv.Tags, ",") {
		if state, ok := strings.CutPrefix(tag, volume.State("").Tag()); ok {
			return volume.State(state)
		}
	}
	return ""
}

// logicalVolumes returns all logical volumes of the node, except for flexlvm's thin pools.
func (b *bed) logicalVolumes(t *testing.T) []logicalVolume {
	t.Helper()
	out := b.onNode(t, "lvs --reportformat json --units b --nosuffix -o vg_name,lv_name,lv_uuid,lv_tags,lv_size")
	var report struct {
		Report []struct {
			LV []logicalVolume `json:"lv"`
		} `json:"report"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &report), out)
	var all []logicalVolume
	for _, r := range report.Report {
		for _, lv := range r.LV {
			if !volume.OwnedPool(strings.Split(lv.Tags, ",")) {
				all = append(all, lv)
			}
		}
	}
	return all
}

// stateOf returns the state of a volume by its original name; "" if it is gone.
func (b *bed) stateOf(t *testing.T, name string) volume.State {
	t.Helper()
	for _, lv := range b.logicalVolumes(t) {
		if string(volume.Name(lv.Name).Undoomed()) == name {
			return lv.state()
		}
	}
	return ""
}

// becomes waits until a volume is in a state; "" waits until it is gone.
func (b *bed) becomes(t *testing.T, name string, want volume.State) {
	t.Helper()
	await.Until(t, longest, func() string {
		is := b.stateOf(t, name)
		return await.Missing(is == want, "volume %s is %q and should be %q", name, is, want)
	})
}

// lvremove is a line of shell that removes logical volumes, which may still be open for a moment.
func lvremove(which string) string {
	return "n=0; until lvremove -qq -y " + which + "; do n=$((n+1)); [ $n -lt 20 ] || exit 1; sleep 0.5; done"
}

// free returns the free bytes of a group.
func (b *bed) free(t *testing.T, group string) int64 {
	t.Helper()
	out := strings.TrimSpace(b.onNode(t, "vgs --noheadings --units b --nosuffix -o vg_free "+group))
	free, err := strconv.ParseInt(out, 10, 64)
	require.NoError(t, err)
	return free
}

// fill uses up a group with a foreign volume until no more than left MiB are free.
func (b *bed) fill(t *testing.T, group string, left int64) {
	t.Helper()
	take := b.free(t, group)/mib - left
	require.Positive(t, take, "group %s is fuller than the test expects", group)
	b.onNode(t, fmt.Sprintf("lvcreate -qq -Zn -an -L %dM -n filler %s", take, group))
	t.Cleanup(func() { b.onNode(t, "lvremove -qq -y "+group+"/filler") })
}

// persistentVolumeGone waits until a PersistentVolume is deleted from the API.
func (b *bed) persistentVolumeGone(t *testing.T, name string) {
	t.Helper()
	await.Until(t, longest, func() string {
		v, err := b.client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			return fmt.Sprintf("PersistentVolume %s is %s, deleted: %v, finalizers %v", name, v.Status.Phase, v.DeletionTimestamp, v.Finalizers)
		}
		return await.Missing(apierrors.IsNotFound(err), "%v", err)
	})
}

// unexplained compares LVM's volumes with the API: each PersistentVolume must have a ready volume, and
// there may be no others except for the foreign ones.
func (b *bed) unexplained(t *testing.T, strangers map[string]string) string {
	t.Helper()
	list, err := b.client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{LabelSelector: pv.LabelNode})
	require.NoError(t, err)
	api := map[string]string{}
	for _, v := range list.Items {
		api[v.Name] = string(volume.Ready)
		if v.DeletionTimestamp != nil || v.Status.Phase != "Bound" {
			return fmt.Sprintf("PersistentVolume %s is %s (deleted: %v)", v.Name, v.Status.Phase, v.DeletionTimestamp)
		}
	}
	is := map[string]string{}
	for _, lv := range b.logicalVolumes(t) {
		if _, theirs := strangers[lv.String()]; !theirs {
			is[lv.Name] = string(lv.state())
		}
	}
	return await.Missing(maps.Equal(api, is), "LVM has %v and the API explains %v", is, slices.Sorted(maps.Keys(api)))
}

// strangers creates foreign volumes in both groups, and returns the UUID, tags and content of each. To
// a less careful daemon, all of them would look released and due for removal.
func (b *bed) strangers(t *testing.T) map[string]string {
	t.Helper()
	released := func(cluster, size string) string {
		tags := []string{
			"flexlvm", "flexlvm.state=unreferenced", "flexlvm.fs=11111111-2222-3333-4444-555555555555", "flexlvm.size=" + size,
			"flexlvm.ns=theirs", "flexlvm.kind=claim", "flexlvm.reclaim=immediate",
		}
		if cluster != "" {
			tags = append(tags, "flexlvm.cluster="+cluster)
		}
		return "--addtag " + strings.Join(tags, " --addtag ")
	}
	script := ""
	for name, tags := range map[string]string{
		"plain":       "--addtag theirs --addtag flexlvm.state=unreferenced --addtag flexlvm.cluster=" + b.uid,
		"doomed_them": "",
		"pvc-other":   released("11111111-2222-3333-4444-555555555555", "1048576"),
		"pvc-none":    released("", "1048576"),
		"pvc-riddle":  released(b.uid, "much"),
	} {
		for _, group := range []string{small, wide} {
			script += fmt.Sprintf("lvcreate -qq -Wn -L 4M -n %[2]s %[3]s %[1]s; yes %[1]s %[2]s | head -c 4M >/dev/%[1]s/%[2]s\n", group, name, tags)
		}
	}
	b.onNode(t, script)
	return b.look(t, []string{"plain", "doomed_them", "pvc-other", "pvc-none", "pvc-riddle"})
}

// look describes the volumes with these names in any group.
func (b *bed) look(t *testing.T, names []string) map[string]string {
	t.Helper()
	all := map[string]string{}
	script := "true"
	for _, lv := range b.logicalVolumes(t) {
		if slices.Contains(names, lv.Name) {
			all[lv.String()] = strings.Join([]string{lv.UUID, lv.Tags, lv.Size}, " ")
			script += fmt.Sprintf("; echo %[1]s $(md5sum </dev/%[1]s)", lv)
		}
	}
	for line := range strings.Lines(b.onNode(t, script)) {
		fields := strings.Fields(line)
		all[fields[0]] += " " + fields[1]
	}
	return all
}

// untouched checks that the foreign volumes are unchanged.
func (b *bed) untouched(t *testing.T, strangers map[string]string) {
	t.Helper()
	var names []string
	for name := range strangers {
		_, name, _ = strings.Cut(name, "/")
		names = append(names, name)
	}
	require.Equal(t, strangers, b.look(t, names), "volumes of others were touched")
}
