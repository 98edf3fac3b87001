//go:build cluster

package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/browser"
)

// A user has kubectl with the plugin, a namespace, and a class whose group exists only on node1, with
// space for six of the smallest volumes.
type user struct {
	*library
	program string // the plugin
	bin     string // a folder for PATH
}

const (
	userClass = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: ` + userGroup + `}
provisioner: flexlvm.io
volumeBindingMode: WaitForFirstConsumer
parameters: {volumeGroup: ` + userGroup + `}
`
	userDevice, spareDevice = "/dev/vdb8", "/dev/vdb9"
)

func newUser(t *testing.T) *user {
	t.Helper()
	program, err := buildPlugin()
	require.NoError(t, err)
	u := &user{newLibrary(t, "page"), program, t.TempDir()}
	require.NoError(t, os.Symlink(program, filepath.Join(u.bin, "kubectl-flexlvm")))
	require.NoError(t, os.Symlink(filepath.Join(filepath.Dir(shared.AdminKubeconfig()), "kubectl"), filepath.Join(u.bin, "kubectl")))
	u.installCSI()
	onNode(u.ctx, t, "node1", driver+" vg create --name "+userGroup+" "+userDevice)
	require.NoError(t, u.apply(userClass))
	u.addReport(thirdNode())
	t.Cleanup(func() {
		out, err := shared.Kubectl(context.WithoutCancel(u.ctx), "delete", "storageclass/"+userGroup, "nodestorage/node3")
		require.NoError(t, err, out)
	})
	return u
}

// thirdNode returns the report of node3, which has no machine: a third virtual one would take memory
// and processor time from all tests that run in parallel. A disk of node3 is missing, and no pod can
// run there.
func thirdNode() *flexlvmv1.NodeStorage {
	now, data, metadata := metav1.Now(), int32(35), int32(12)
	return &flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: "node3"}, Status: flexlvmv1.NodeStorageStatus{
		ObservedTime: now, Volumes: 9,
		Conditions: []metav1.Condition{{Type: flexlvmv1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Observed", LastTransitionTime: now}},
		Pools: []flexlvmv1.Pool{
			{Name: "flexlvm", UUID: "third-1", Layout: "linear", Size: resource.MustParse("16Gi"), Free: resource.MustParse("2Gi"), MissingDevices: 1},
			{Name: "thin/thinpool", UUID: "third-2", Layout: "thin", Size: resource.MustParse("3Gi"), Free: resource.MustParse("2Gi"), ThinDataPercent: &data, ThinMetadataPercent: &metadata},
		},
	}}
}

// addReport adds a NodeStorage with its status.
func (u *user) addReport(s *flexlvmv1.NodeStorage) {
	u.t.Helper()
	require.NoError(u.t, u.apply("{apiVersion: flexlvm.io/v1, kind: NodeStorage, metadata: {name: "+s.Name+"}}"))
	patch, err := json.Marshal(map[string]any{"status": s.Status})
	require.NoError(u.t, err)
	u.kubectl("patch", "nodestorage", s.Name, "--subresource=status", "--type=merge", "-p", string(patch))
}

// shell runs a line as the user does, which must succeed, and logs its output.
func (u *user) shell(line string) string {
	u.t.Helper()
	out := u.quietly(line)
	u.t.Logf("%s\n%s", line, out)
	return out
}

// quietly runs a line as the user does, which must succeed.
func (u *user) quietly(line string) string {
	u.t.Helper()
	cmd := shared.Command(u.ctx, "bash", "-euc", line)
	cmd.Env = append(os.Environ(), "PATH="+u.bin+":"+os.Getenv("PATH"), "KUBECONFIG="+shared.AdminKubeconfig())
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	require.NoError(u.t, err, "%s: %s%s", line, out, &said)
	return string(out)
}

// answer returns the plugin's JSON output, decoded.
func answer[T any](u *user, line string) (out T) {
	u.t.Helper()
	require.NoError(u.t, json.Unmarshal([]byte(u.quietly("kubectl flexlvm "+line+" -o json")), &out))
	return out
}

// released returns the released volumes of the user's group.
func (u *user) released() (names []string) {
	u.t.Helper()
	for _, v := range answer[[]overview.Volume](u, "volumes -n page") {
		if v.Pool == userGroup && v.State == "unreferenced" {
			names = append(names, v.Name)
		}
	}
	return names
}

// explains runs kubectl explain for the fields of flexlvm's objects, as the reference says.
func (u *user) explains() {
	u.t.Helper()
	reference, err := os.ReadFile(shipped(u.t, "docs/reference/README.md"))
	require.NoError(u.t, err)
	commands := regexp.MustCompile(`(?m)^kubectl explain .*(flexlvm\.io).*$`).FindAllString(string(reference), -1)
	require.Len(u.t, commands, 5)
	for _, command := range commands {
		require.Contains(u.t, u.shell(command), "GROUP:      flexlvm.io", command)
	}
}

// TestUsersWay does what a user does: checks the cluster's status, restores a deleted claim, asks what
// would be evicted, watches it on the page, gets an alert, and follows its runbook. The pictures in
// docs/ show it.
func TestUsersWay(t *testing.T) {
	slots.Parallel(t, 110)
	u := newUser(t)
	names := []string{"data", "old-1", "old-2", "old-3"}
	pods := []string{
		claim("orders", "3Gi"), pod{name: "shop", claim: "orders", node: "node1"}.manifest(),
		claimOf("flexlvm-csi", "ledger", "1Gi"), pod{name: "books", claim: "ledger", node: "node1"}.manifest(),
		claim("archive", "2Gi"), pod{name: "old", claim: "archive", node: "node1"}.manifest(),
	}
	for _, name := range names {
		pods = append(pods, claimOf(userGroup, name, "64Mi"), pod{name: name, claim: name}.manifest())
	}
	u.run(pods...)
	sum := u.exec("data", "dd if=/dev/urandom of=/data/proof bs=1M count=2 2>/dev/null; sync -f /data; md5sum /data/proof")
	volume := u.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
	for _, name := range names { // one after the other, which is the order of their last use and of their release
		u.kubectl("delete", "pod/"+name, "pvc/"+name)
	}
	await.Until(t, patience, func() string {
		released, reclaimable := u.released(), u.reclaimable() // the latter may come from a round between two deletions
		return await.Missing(len(released) == len(names) && reclaimable == int64(len(names)*300*mib), "not all of the claims' volumes are released and reported as reclaimable: %v, %d bytes", released, reclaimable)
	})

	u.kubectl("wait", "--for=delete", "pv/"+volume, patiently)
	u.looksAtStatus(len(names))
	u.explains()
	require.Regexp(t, "^volume "+volume+` is ready again, for claim page/data \(released 20.*Z, on node \S+\)\n$`, u.shell("kubectl flexlvm undelete data -n page --wait 9m"))
	require.NoError(t, u.apply(pod{name: "data", claim: "data"}.manifest()))
	var waiting []string
	await.Until(t, patience, func() string {
		waiting = u.released()
		return await.Missing(!slices.Contains(waiting, volume), "volume %s is still reported as released", volume)
	})
	require.Len(t, waiting, len(names)-1)

	// The pod waits until there is space for it, while the user watches the page.
	first := u.plans("800Mi")
	require.NoError(t, u.apply(claimOf(userGroup, "first", "800Mi")+"\n---\n"+pod{name: "first", claim: "first"}.manifest()))
	w, url := u.looksAtThePage()
	u.kubectl("wait", "--for=condition=Ready", "pod/data", "pod/first", patiently)
	require.Equal(t, sum, u.exec("data", "md5sum /data/proof"), "the pod finds its file")
	u.wentAsPlanned("first", first, waiting)

	prometheus := u.startPrometheus()
	prometheus.is("FlexlvmPoolAlmostFull", "")
	second := u.plans("600Mi")
	require.NoError(t, u.apply(claimOf(userGroup, "second", "600Mi")+"\n---\n"+pod{name: "second", claim: "second"}.manifest()))
	u.ready("second")
	u.wentAsPlanned("second", second, slices.DeleteFunc(slices.Clone(waiting), func(v string) bool { return slices.Contains(first, v) }))
	prometheus.is("FlexlvmPoolAlmostFull", "firing")
	u.followsRunbook("FlexlvmPoolAlmostFull", "NODE", "node1", "GROUP", userGroup, "DEVICE", spareDevice)
	u.asksThePage(w, url) // the daemon finds the disk within a minute
	prometheus.is("FlexlvmPoolAlmostFull", "")
	u.readsStatistics(map[string]int64{"orders": 3 << 30, "ledger": 1 << 30})
}

// looksAtStatus checks that the status says what is wrong and what to do, and that so many of the
// smallest volumes are reclaimable.
func (u *user) looksAtStatus(released int) {
	u.t.Helper()
	said := u.shell("kubectl flexlvm status")
	require.Regexp(u.t, `^3 nodes with .* reclaimable, `, said)
	require.Contains(u.t, said, "critical node3 flexlvm: LVM does not find 1 of its devices\n  → run pvs on the node")
	require.EqualValues(u.t, released*300*mib, u.reclaimable())
}

// reclaimable returns how much the plugin reports as reclaimable in the user's group. It is one round
// of the daemon behind released.
func (u *user) reclaimable() (bytes int64) {
	u.t.Helper()
	for _, n := range answer[overview.Status](u, "status --all").Nodes {
		i := slices.IndexFunc(n.Pools, func(p overview.Pool) bool { return p.Name == userGroup })
		require.Equal(u.t, n.Name == "node1", i >= 0, n.Name)
		if i >= 0 {
			bytes = int64(n.Pools[i].Reclaimable)
		}
	}
	return bytes
}

// plans asks what would be evicted for a claim, which fits only on node1, and returns these volumes.
func (u *user) plans(size string) (goes []string) {
	u.t.Helper()
	fits := answer[[]overview.Fit](u, "plan --claim "+size+" --class "+userGroup)
	require.Len(u.t, fits, 3)
	require.Equal(u.t, "node1", fits[0].Node)
	require.True(u.t, fits[0].Fits, fits[0].Why)
	for _, other := range fits[1:] {
		require.False(u.t, other.Fits, other.Node)
		require.NotEmpty(u.t, other.Why, other.Node)
	}
	for _, e := range slices.Concat(fits[0].Evictions, fits[0].Then) {
		require.Equal(u.t, userGroup, e.Pool)
		goes = append(goes, e.Name)
	}
	require.NotEmpty(u.t, goes)
	return goes
}

// wentAsPlanned checks that the claim is on the planned node, and that of the released volumes exactly
// the planned ones were evicted.
func (u *user) wentAsPlanned(claim string, goes, waited []string) {
	u.t.Helper()
	name := u.kubectl("get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
	require.Equal(u.t, "node1", u.kubectl("get", "pv", name, "-o", `jsonpath={.metadata.labels.flexlvm\.io/node}`))
	there := func() (out []string) {
		all := onNode(u.ctx, u.t, "node1", "lvs --noheadings -o lv_name "+userGroup)
		for _, v := range waited {
			if strings.Contains(all, v) {
				out = append(out, v)
			}
		}
		return out
	}
	await.Until(u.t, patience, func() string {
		left := slices.DeleteFunc(there(), func(v string) bool { return !slices.Contains(goes, v) })
		return await.Missing(len(left) == 0, "these were to go: %v", left)
	})
	// The daemon reports the remaining volumes, and plans no further eviction.
	var stays []string
	for _, v := range waited {
		if !slices.Contains(goes, v) {
			stays = append(stays, v)
		}
	}
	await.Until(u.t, patience, func() string {
		reported := u.released()
		more := slices.DeleteFunc(answer[[]overview.Eviction](u, "plan"), func(e overview.Eviction) bool { return e.Pool != userGroup || e.Reason == "" })
		return await.Missing(len(reported) == len(stays) && len(more) == 0, "%v is reported to wait, not %v; more is to go: %+v", reported, stays, more)
	})
	require.ElementsMatch(u.t, stays, there())
}

// readsStatistics checks that kubelet reports the sizes of the claims' volumes, whichever driver mounts
// them.
func (u *user) readsStatistics(sizes map[string]int64) {
	u.t.Helper()
	await.Until(u.t, patience, func() string {
		var summary struct {
			Pods []struct {
				Volume []struct {
					PVCRef        struct{ Namespace, Name string }
					CapacityBytes int64
					UsedBytes     *int64
				}
			}
		}
		out, err := shared.Kubectl(u.ctx, "get", "--raw", "/api/v1/nodes/node1/proxy/stats/summary")
		if err != nil {
			return err.Error() // kubelet may be slow to answer
		}
		require.NoError(u.t, json.Unmarshal([]byte(out), &summary))
		seen := map[string]int64{}
		for _, p := range summary.Pods {
			for _, v := range p.Volume {
				if _, asked := sizes[v.PVCRef.Name]; asked && v.PVCRef.Namespace == "page" && v.UsedBytes != nil {
					seen[v.PVCRef.Name] = v.CapacityBytes
				}
			}
		}
		return await.Missing(maps.Equal(seen, sizes), "kubelet says that claims have %v, not %v", seen, sizes)
	})
}

// looksAtThePage checks that the page shows what happens in the cluster meanwhile, a dataset being
// loaded and a claim being deleted, and that it is readable on every screen.
func (u *user) looksAtThePage() (w *browser.Window, url string) {
	u.t.Helper()
	u.bucket("page", slices.Repeat([]int{mib}, 60)...)
	archive := u.kubectl("get", "pvc", "archive", "-o", "jsonpath={.spec.volumeName}")
	kubeconfig := filepath.Join(u.t.TempDir(), "kubeconfig")
	require.NoError(u.t, shared.OutsideKubeconfig(u.t.Context(), kubeconfig))
	url = browser.Serve(u.t, u.program, kubeconfig)

	w = browser.Open(u.t)
	w.Visit(url + "?node=node1#node")
	w.Until("Live")
	w.Until("Released volumes on node1")
	browser.Eval[int](w, "window.loads = 1") // lost if the page is reloaded
	u.kubectl("delete", "pod/old", "pvc/archive")
	w.Until(archive)
	require.NoError(u.t, u.apply(u.dataset("books", "S3", "page", 2, "bandwidth: 128Ki")))
	w.Until(`page/books/data incomplete[^/]*node[12]: Loading [1-9]\d* %`)
	require.Equal(u.t, 1, browser.Eval[int](w, "window.loads"))
	w.CheckScreens()
	roles := w.CheckAccessible()
	require.GreaterOrEqual(u.t, roles["img"]+roles["image"], 7, "the cluster's and those of three pools of each node: %v", roles)
	require.Positive(u.t, roles["progressbar"], "%v", roles)
	w.CheckKeyboard()
	u.takesPictures(w, url)
	return w, url
}

// takesPictures takes the pictures of docs/.
func (u *user) takesPictures(w *browser.Window, url string) {
	u.t.Helper()
	for _, p := range []struct{ name, query string }{{"light", "?claim=12Gi&class=flexlvm&nodes=2"}, {"dark", ""}, {"phone", ""}} {
		w.Visit(url + p.query)
		w.Until("Live")
		w.Show(browser.Screens[p.name])
		w.Picture("page-" + p.name + ".png")
	}
	w.Show(browser.Screens["light"])
	u.t.Log(w.Memory())
}

// asksThePage finds a claim and evaluates a hypothetical one, using only the keyboard.
func (u *user) asksThePage(w *browser.Window, url string) {
	u.t.Helper()
	w.Visit(url)
	browser.Eval[bool](w, `document.getElementById("q").focus(), true`)
	w.Type("orders\r")
	w.Until(`page/orders\s+node1\s[^/]*shop`)
	require.Contains(u.t, browser.Eval[string](w, "location.hash"), "found")
	browser.Eval[bool](w, `document.getElementById("claim").focus(), true`)
	w.Type("100Gi\r")
	w.Until(`A claim of 100 GiB of class flexlvm fits on 0 of 3 nodes\.`)
	w.Until("has no room for it")
	require.Empty(u.t, w.Complaints(), strings.Join(w.Complaints(), "\n"))
}
