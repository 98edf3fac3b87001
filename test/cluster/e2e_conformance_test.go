//go:build cluster

package cluster_test

// Kubernetes' own tests of CSI drivers, the external storage suite, against the CSI driver.

import (
	"flag"
	"fmt"
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

// breadth are ten of them: one of each kind.
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

// expected are the tests that fail, by the ends of their names, and the limit that is the reason.
var expected = map[string]string{
	"provisioning should provision storage with any volume data source [Serial]": "a populator fills a volume in a namespace of its own and hands it to another, which is refused (docs/limitations.md)",
}

// What the driver's description does not select is skipped, and says so.
var skips = regexp.MustCompile(`(?i)not support|skipping|only supports|inconsistent|immediate|cannot be read-only`)

// Tests of features that are here, beside those of none.
const (
	features   = " && Feature: isSubsetOf {VolumeSnapshotDataSource, VolumeAttributesClass}"
	notSlow    = "!Slow && !Serial && !Disruptive" + features
	slow       = "(Slow || Serial) && !Disruptive" + features
	disruptive = "Disruptive" + features
)

// rounds are what the suite runs, one after the other.
func rounds(t *testing.T, which string) []cluster.Selection {
	t.Helper()
	linear := cluster.Selection{Driver: shipped(t, "test/cluster/conformance/testdriver.yaml"),
		Focus: []string{"External Storage"}, Labels: notSlow, AtOnce: 6, Within: *within}
	thin := linear
	thin.Driver = shipped(t, "test/cluster/conformance/testdriver-thin.yaml")
	thin.Focus = []string{"External Storage.*(snapshot|pvc data source)"} // the rest is as with the other class
	switch which {
	case "some":
		linear.Focus = nil
		for _, name := range breadth {
			linear.Focus = append(linear.Focus, "External Storage.*"+regexp.QuoteMeta(name))
		}
		return []cluster.Selection{linear}
	case "slow":
		linear.Labels, thin.Labels = slow, slow
	case "disruptive": // they stop kubelet
		linear.Labels, linear.AtOnce = disruptive, 1
		return []cluster.Selection{linear}
	}
	return []cluster.Selection{linear, thin}
}

// TestConformance runs ten of the suite's tests, or what -conformance says. All pass but those
// that are listed above, and of those each fails.
func TestConformance(t *testing.T) {
	t.Parallel()
	n := newCSITenant(t, "conformance")
	if *conformance != "some" {
		n.prepareConformance()
	}
	suite, err := cluster.BuildConformance(n.ctx, os.Stderr)
	require.NoError(t, err)
	require.NoError(t, shared.LoadImage(n.ctx, suite.Images()))
	await.Until(t, time.Minute, func() string {
		class := n.kubectl("get", "csistoragecapacities", "-A", "-o", "jsonpath={.items[*].storageClassName}")
		return await.Missing(strings.Contains(class, "flexlvm-csi"), "capacities of %q", class)
	})
	specs := conform(t, suite, *conformance)
	check(t, specs)
	switch *conformance {
	case "some":
		for _, name := range breadth {
			require.True(t, slices.ContainsFunc(specs, func(s cluster.Spec) bool {
				return s.State == "passed" && strings.Contains(s.Name, name)
			}), "%s did not run", name)
		}
	default:
		document, err := os.ReadFile(shipped(t, "docs/conformance.md"))
		require.NoError(t, err)
		for _, spec := range specs {
			require.Contains(t, string(document), row(spec), "the document does not have what came of it")
		}
	}
}

// row is how the line of a test begins in the document's table.
func row(spec cluster.Spec) string {
	_, name, _ := strings.Cut(spec.Name, "[Testpattern: ")
	pattern, name, _ := strings.Cut(name, "] ")
	return fmt.Sprintf("| %s | %s | %s |", name, pattern, spec.State)
}

// prepareConformance installs what the suite's tests of snapshots and of VolumeAttributesClasses
// need, with the classes that the descriptions of the driver name.
func (n *tenant) prepareConformance() {
	n.t.Helper()
	snapshots := snapshotTenant(n.t, "conformance-snapshots")
	snapshots.example("class.yaml")
	snapshots.kubectl("delete", "pvc", "database")
	n.kubectl("apply", "-f", shipped(n.t, "examples/volumeattributesclass.yaml"))
}

// conform runs some of the suite's tests, all, or the slow ones.
func conform(t *testing.T, suite *cluster.Conformance, which string) (specs []cluster.Spec) {
	t.Helper()
	cache, err := vm.CacheDir()
	require.NoError(t, err)
	log, err := os.Create(filepath.Join(cache, "external-storage-"+which+".log"))
	require.NoError(t, err)
	defer log.Close()
	for _, round := range rounds(t, which) {
		began := time.Now()
		ran, err := shared.Conform(deadline(t, *within+5*time.Minute), suite, round, log)
		require.NoError(t, err, "see %s", log.Name())
		t.Logf("%s, %s: %d tests in %s; what they print is in %s", filepath.Base(round.Driver), round.Labels,
			len(ran), time.Since(began).Round(time.Second), log.Name())
		specs = append(specs, ran...)
	}
	return specs
}

// check compares what came of the tests with what is expected, and shows it.
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
		case spec.State == "skipped" && !skips.MatchString(spec.Message):
			t.Errorf("%s is skipped, and not for what the driver is said to lack: %s", spec.Name, spec.Message)
		case spec.State == "skipped":
		case listed && spec.State == "passed":
			t.Errorf("%s passes: take it off the list of those that do not, for %q", spec.Name, reason)
		case !listed && spec.State != "passed":
			t.Errorf("%s: %s: %s", spec.State, spec.Name, spec.Message)
		}
	}
	t.Logf("the external storage suite: %v", count)
}
