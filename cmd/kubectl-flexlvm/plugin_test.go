package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/volume"
)

var now = time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)

// The status of 1,000 nodes fits on one screen and shows what is wrong.
func TestStatusIsOneScreen(t *testing.T) {
	var all []flexlvmv1.NodeStorage
	for i := range 1000 {
		s := flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%04d", i)}, Status: flexlvmv1.NodeStorageStatus{
			ObservedTime: metav1.NewTime(now),
			Pools:        []flexlvmv1.Pool{{Name: "flexlvm", Size: resource.MustParse("1Ti"), Free: resource.MustParse("512Gi"), Reclaimable: resource.MustParse("256Gi")}},
		}}
		if i == 700 {
			s.Status.Pools[0].MissingDevices = 1
		}
		all = append(all, s)
	}
	var out bytes.Buffer
	printStatus(&out, overview.StatusOf(all, now), false, false, now)
	text := out.String()
	require.Less(t, strings.Count(text, "\n"), 40, text)
	require.Contains(t, text, "1000 nodes with 1000 TiB: 25% in use, 25% reclaimable, 50% free, 0 B promised. 1 needs attention.")
	require.Contains(t, text, "critical node-0700 flexlvm: LVM does not find 1 of its devices")
	require.Less(t, strings.Index(text, "node-0700"), strings.Index(text, "node-0000"))
	require.Contains(t, text, "988 more nodes")

	out.Reset()
	printStatus(&out, overview.StatusOf(all, now), true, true, now)
	require.Contains(t, out.String(), "node-0999")
}

func TestStatusWithoutNodes(t *testing.T) {
	var out bytes.Buffer
	printStatus(&out, overview.StatusOf(nil, now), false, false, now)
	require.Contains(t, out.String(), "no node has reported")
}

func TestClaimsAreRead(t *testing.T) {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "flexlvm.io", Parameters: map[string]string{"volumeGroup": "nvme"}}
	spec, err := specOf("1", class)
	require.NoError(t, err)
	require.Equal(t, volume.Block, spec.Size)
	require.Equal(t, volume.PoolName("nvme"), spec.Pool())
	for size, says := range map[string]string{"many": "give a size such as 500Gi", "-1Gi": "more than 0", "1Ei": "at most"} {
		_, err := specOf(size, class)
		require.ErrorContains(t, err, says, size)
	}
	class.Parameters["layout"] = "round"
	_, err = specOf("1Gi", class)
	require.ErrorContains(t, err, "round")
	class.Provisioner = "example.org"
	_, err = specOf("1Gi", class)
	require.ErrorContains(t, err, "has the provisioner example.org")
}

func TestPlansAreTold(t *testing.T) {
	goes := overview.Eviction{Node: "b", Pool: "flexlvm", Name: "pvc-old", Namespace: "shop", Room: volume.GiB, LastUsed: metav1.NewTime(now.Add(-48 * time.Hour)), Reason: "Promised", Message: "it is needed"}
	fits := []overview.Fit{
		{Node: "a", Fits: true},
		{Node: "b", Fits: true, Evictions: []overview.Eviction{goes}, Replicas: volume.GiB, Unlisted: 7},
		{Node: "c", Why: "has no room for it"},
	}
	var out bytes.Buffer
	(&planOptions{output: "table", claim: "500Gi", class: "fast", nodes: 3}).printFits(&out, fits, now)
	require.Equal(t, `A claim of 500Gi of class fast fits on 2 of 3 nodes; 3 are needed: 1 too few.

a: yes, without evictions

b: yes, with these evictions:
    flexlvm   pvc-old   shop   1 GiB   2d   Promised
  and unused replicas of datasets, 1 GiB in total
  The node has 7 released volumes that it does not list.

c: no, it has no room for it
`, out.String())

	out.Reset()
	printNext(&out, []overview.Eviction{goes, {Node: "c", Pool: "flexlvm", Name: "pvc-next", Room: volume.GiB, Message: "number 1 in its pool's eviction order when room is needed"}}, now)
	require.Equal(t, `NODE   POOL      VOLUME     NAMESPACE   ROOM    LAST-USED   WHEN    WHY
b      flexlvm   pvc-old    shop        1 GiB   2d          now     it is needed
c      flexlvm   pvc-next   -           1 GiB   -           later   number 1 in its pool's eviction order when room is needed
`, out.String())
}

func TestOutputs(t *testing.T) {
	answer := []overview.Volume{{Node: "a", Name: "pvc-1", Size: volume.GiB, State: "Bound", EvictionOrder: 2}}
	for form, want := range map[output]string{
		"json": `"name": "pvc-1"`, "yaml": "name: pvc-1", "table": "1 GiB   Bound   -           2\n", "wide": "RELEASED   VOLUME\n",
	} {
		require.NoError(t, form.check())
		var out bytes.Buffer
		require.NoError(t, form.print(&out, answer, func(to io.Writer) { printVolumes(to, answer, form.wide(), now) }))
		require.Contains(t, out.String(), want, form)
	}
	require.ErrorContains(t, output("xml").check(), "give one of table, wide, json, yaml")
}

// JSON is printed to terminals, too, and repeats text from others: control characters are escaped, and
// the decoded value is unchanged.
func TestJSONWithoutControlCharacters(t *testing.T) {
	answer := []string{"\x1b[2J \u007f \u009b2J ä \u2028", "\\u009b"}
	var out bytes.Buffer
	require.NoError(t, output("json").print(&out, answer, nil))
	require.Equal(t, out.String(), replaceControl(out.String()))
	require.Contains(t, out.String(), `\u007f \u009b2J ä`)
	var back []string
	require.NoError(t, json.Unmarshal(out.Bytes(), &back))
	require.Equal(t, answer, back)
}

// Of a cluster's pods, only those with claims are kept.
func TestPodsWithClaims(t *testing.T) {
	pod := func(name string, volumes ...corev1.VolumeSource) client.Object {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		for _, v := range volumes {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: v})
		}
		return p
	}
	c := fake.NewClientBuilder().WithObjects(
		pod("bare"), pod("scratch", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		pod("db", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}),
		pod("worker", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}),
	).Build()
	all, err := pods(t.Context(), c, "")
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, "db", all[0].Name)
	require.Equal(t, "worker", all[1].Name)
}

// kubectl runs the program under another name for completions.
func TestCompleter(t *testing.T) {
	require.Equal(t, []string{"status", "--all"}, arguments([]string{"/usr/bin/kubectl-flexlvm", "status", "--all"}))
	require.Equal(t, []string{"__complete", "volumes", "-o", ""}, arguments([]string{"/home/a/.krew/bin/kubectl_complete-flexlvm", "volumes", "-o", ""}))
	require.Equal(t, []string{"__complete", "st"}, arguments([]string{"kubectl_complete-flexlvm", "st"}))
	require.Empty(t, arguments([]string{"kubectl-flexlvm"}))
}

// A shell completes the commands and the values of -o.
func TestCompletion(t *testing.T) {
	for _, tt := range [][]string{{"__complete", "st", "status"}, {"__complete", "volumes", "-o", "y", "yaml"}} {
		var out bytes.Buffer
		cmd := command()
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		args := tt[:len(tt)-1]
		cmd.SetArgs(args)
		require.NoError(t, cmd.Execute())
		require.Contains(t, out.String(), tt[len(tt)-1])
	}
}
