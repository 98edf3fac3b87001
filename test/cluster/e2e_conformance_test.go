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

var conformance = flag.String("conformance", "some", "which tests of the external storage suite run: some, all, or slow, which are the slow, serial and disruptive ones")

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
var expected = map[string]string{}

// What the driver's description does not select is skipped, and says so.
var skips = regexp.MustCompile(`(?i)not support|skipping|only supports|inconsistent|immediate`)

const (
	notSlow = "!Slow && !Serial && !Disruptive && Feature: isEmpty"
	slow    = "(Slow || Serial || Disruptive) && Feature: isEmpty"
)

// TestConformance runs ten of the suite's tests, or what -conformance says. All pass but those
// that are listed above, and of those each fails.
func TestConformance(t *testing.T) {
	t.Parallel()
	n := newCSITenant(t, "conformance")
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
	case "all":
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

// conform runs some of the suite's tests, all, or the slow ones.
func conform(t *testing.T, suite *cluster.Conformance, which string) []cluster.Spec {
	t.Helper()
	run := cluster.Selection{
		Driver: shipped(t, "test/cluster/conformance/testdriver.yaml"), Labels: notSlow,
		Focus: []string{"External Storage"}, AtOnce: 6, Within: *within,
	}
	switch which {
	case "slow":
		run.Labels = slow
	case "some":
		run.Focus = nil
		for _, name := range breadth {
			run.Focus = append(run.Focus, "External Storage.*"+regexp.QuoteMeta(name))
		}
	}
	cache, err := vm.CacheDir()
	require.NoError(t, err)
	log, err := os.Create(filepath.Join(cache, "external-storage-"+which+".log"))
	require.NoError(t, err)
	defer log.Close()
	began := time.Now()
	specs, err := shared.Conform(deadline(t, *within+5*time.Minute), suite, run, log)
	require.NoError(t, err, "see %s", log.Name())
	t.Logf("%d tests in %s; what they print is in %s", len(specs), time.Since(began).Round(time.Second), log.Name())
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
