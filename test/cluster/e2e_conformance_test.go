//go:build cluster

package cluster_test

// Kubernetes' own tests of CSI drivers, the external storage suite, run against the CSI driver.

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/cluster"
	"github.com/flexlvm/flexlvm/test/vm"
)

var within = flag.Duration("conformance.within", 2*time.Hour, "how long the tests of the external storage suite may take")

var conformance = flag.String("conformance", "some", "which tests of the external storage suite run: some, or all that are neither slow nor serial nor disruptive, or slow, which are the slow and serial ones, or disruptive")

var focus = flag.String("conformance.focus", "", "a regular expression: only tests whose names match it run, of those that -conformance says, and with the shipped class")

// breadth are ten of the suite's tests, one of each kind.
var breadth = []string{
	"(delayed binding)] topology should provision a volume and schedule a pod with AllowedTopologies",
	"(default fs)] provisioning should provision storage with mount options",
	"(default fs)] provisioning should mount multiple PV pointing to the same storage on the same node",
	"(default fs)(allowExpansion)] volume-expand should resize volume when PVC is edited while pod is using it",
	"(default fs)] volumes should store data",
	"(default fs)] volumes should allow exec of files on the volume",
	"(default fs)] subPath should be able to unmount after the subpath directory is deleted",
	"(default fs)] fsgroupchangepolicy (OnRootMismatch)[LinuxOnly], pod created with an initial fsgroup, new pod fsgroup applied to volume contents",
	"(default fs) (late-binding)] ephemeral should support two pods which have the same volume definition",
	"read-write-once-pod should block a second pod from using an in-use ReadWriteOncePod volume on the same node",
}

// expected are the tests that fail, by the end of their names, and the limit that is the reason.
var expected = map[string]string{
	"(block volmode)] multiVolume should concurrently access the single read-only volume from pods on the same node [Slow]": "a device that is read-only for one pod and writable for another would have to be two (docs/block.md)",
	"(default fs)] provisioning should provision storage with any volume data source [Serial]":                              "a populator fills a volume in a namespace of its own and hands it to another, which is refused (docs/limitations.md)",
}

// Selections of the suite's tests: those of supported features and those that need no feature.
const (
	features   = " && Feature: isSubsetOf {VolumeSnapshotDataSource, VolumeAttributesClass}"
	notSlow    = "!Slow && !Serial && !Disruptive" + features
	slow       = "(Slow || Serial) && !Disruptive" + features
	disruptive = "Disruptive" + features
)

// rounds returns the suite's selections, which run one after the other.
func rounds(t *testing.T, which string) []cluster.Selection {
	t.Helper()
	round := func(driver, focus string) cluster.Selection {
		return cluster.Selection{Driver: shipped(t, "test/cluster/conformance/"+driver),
			Focus: []string{"External Storage.*" + focus}, Labels: notSlow, AtOnce: 6, Within: *within}
	}
	linear := round("testdriver.yaml", "")
	// The tests left out here behave as with the first class.
	const snapshots = `\] snapshottable|snapshot data source|restoring snapshot`
	thin := round("testdriver-thin.yaml", "("+snapshots+"|pvc data source)")
	thick := round("testdriver-thick.yaml", "("+snapshots+")")
	switch which {
	case "some":
		linear.Focus = nil
		for _, name := range breadth {
			linear.Focus = append(linear.Focus, "External Storage.*"+regexp.QuoteMeta(name))
		}
		return []cluster.Selection{linear}
	case "slow": // with the thick class none of them is selected
		linear.Labels, thin.Labels = slow, slow
		return []cluster.Selection{linear, thin}
	case "disruptive": // they stop kubelet
		linear.Labels, linear.AtOnce = disruptive, 1
		return []cluster.Selection{linear}
	}
	return []cluster.Selection{linear, thin, thick}
}

// TestConformance runs ten of the suite's tests, or those selected by -conformance. All pass except
// those in expected, each of which must fail.
func TestConformance(t *testing.T) {
	slots.Parallel(t, 130)
	require.False(t, *focus != "" && *conformance == "some", "-conformance.focus selects from all, slow or disruptive: give -conformance, too")
	n := newCSITenant(t, "conformance")
	if *conformance != "some" {
		n.prepareConformance()
	}
	suite, err := cluster.BuildConformance(n.ctx, os.Stderr)
	require.NoError(t, err)
	require.NoError(t, shared.LoadImage(n.ctx, suite.Images()))
	await.Until(t, patience, func() string {
		classes := n.kubectl("get", "csistoragecapacities", "-A", "-o", "jsonpath={.items[*].storageClassName}")
		return await.Missing(slices.Contains(strings.Fields(classes), "flexlvm-csi"), "capacities of %q", classes)
	})
	specs := conform(t, suite, *conformance)
	check(t, specs)
	if *focus != "" {
		require.Subset(t, documented(t, *conformance), rowsOf(t, specs), "docs/conformance.md says something else")
		return
	}
	if *conformance != "some" {
		require.ElementsMatch(t, documented(t, *conformance), rowsOf(t, specs), "docs/conformance.md says something else")
		return
	}
	require.Len(t, specs, len(breadth))
	for _, spec := range specs {
		require.Equal(t, "passed", spec.State, spec.Name)
	}
	for _, name := range breadth {
		require.True(t, slices.ContainsFunc(specs, func(s cluster.Spec) bool { return strings.Contains(s.Name, name) }), "%s did not run", name)
	}
}

// rowsOf returns the tests' lines in the document's tables, without the columns that say which tests
// are part of make test and why a listed test fails.
func rowsOf(t *testing.T, specs []cluster.Spec) (rows []string) {
	t.Helper()
	for _, spec := range specs {
		class := classOf(t, spec.Driver)
		_, name, _ := strings.Cut(spec.Name, "[Testpattern: ")
		pattern, name, _ := strings.Cut(name, "] ")
		reason := ""
		if spec.State == "skipped" {
			reason = strings.SplitN(spec.Message, "\n", 2)[0]
		}
		rows = append(rows, strings.Join([]string{class, strings.TrimSpace(name), strings.TrimSpace(pattern), spec.State, strings.TrimSpace(reason)}, " | "))
	}
	return rows
}

// classOf returns the StorageClass in a file that describes the driver to the suite.
func classOf(t *testing.T, driver string) string {
	t.Helper()
	content, err := os.ReadFile(driver)
	require.NoError(t, err)
	class := regexp.MustCompile(`StorageClass:\n  FromExistingClassName: (\S+)`).FindSubmatch(content)
	require.NotNil(t, class, driver)
	return string(class[1])
}

// documented returns the document's rows of such a run.
func documented(t *testing.T, which string) (rows []string) {
	t.Helper()
	document, err := os.ReadFile(shipped(t, "docs/conformance.md"))
	require.NoError(t, err)
	ordinary, others, found := strings.Cut(string(document), "\n### Slow, serial and disruptive\n")
	require.True(t, found)
	table := others
	if which == "all" {
		table = ordinary
	}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 6 || !slices.Contains([]string{"passed", "failed", "skipped"}, strings.TrimSpace(cells[3])) {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if stops := strings.Contains(cells[1], "[Disruptive]"); which != "all" && stops != (which == "disruptive") {
			continue
		}
		reason := ""
		if cells[3] == "skipped" {
			reason = cells[5]
		}
		rows = append(rows, strings.Join([]string{cells[0], cells[1], cells[2], cells[3], reason}, " | "))
	}
	return rows
}

// prepareConformance installs what the suite's tests of snapshots and VolumeAttributesClasses need,
// with the classes that the descriptions of the driver name.
func (n *tenant) prepareConformance() {
	n.t.Helper()
	snapshots := snapshotTenant(n.t, "conformance-snapshots")
	snapshots.example("thick.yaml")
	snapshots.kubectl("delete", "pvc", "--all")
	n.applyExample("volumeattributesclass.yaml")
}

// conform runs the suite's tests that which selects.
func conform(t *testing.T, suite *cluster.Conformance, which string) (specs []cluster.Spec) {
	t.Helper()
	cache, err := vm.CacheDir()
	require.NoError(t, err)
	log, err := os.Create(filepath.Join(cache, "external-storage-"+which+".log"))
	require.NoError(t, err)
	defer log.Close()
	selected := rounds(t, which)
	if *focus != "" {
		selected = selected[:1]
		selected[0].Focus = []string{"External Storage.*" + *focus}
	}
	for _, round := range selected {
		began := time.Now()
		ran, err := shared.Conform(deadline(t, *within+5*time.Minute), suite, round, log)
		require.NoError(t, err, "see %s", log.Name())
		t.Logf("%s, %s: %d tests in %s; what they print is in %s", filepath.Base(round.Driver), round.Labels,
			len(ran), time.Since(began).Round(time.Second), log.Name())
		specs = append(specs, ran...)
	}
	return specs
}

// check logs the tests' results and compares them with the expected ones.
func check(t *testing.T, specs []cluster.Spec) {
	t.Helper()
	count := map[string]int{}
	for _, spec := range specs {
		reason, listed := "", false
		for name, why := range expected {
			if strings.HasSuffix(spec.Name, name) {
				reason, listed = why, true
			}
		}
		count[spec.State]++
		t.Logf("%-7s %5.1fs %s %s", spec.State, spec.Took.Seconds(), spec.Name, strings.SplitN(spec.Message, "\n", 2)[0])
		switch {
		case listed && spec.State != "failed":
			t.Errorf("%s is %s: take it off the list of those that fail, for %q", spec.Name, spec.State, reason)
		case !listed && spec.State != "passed" && spec.State != "skipped": // the document says why
			t.Errorf("%s: %s: %s", spec.State, spec.Name, spec.Message)
		}
	}
	t.Logf("the external storage suite: %v", count)
}
