//go:build cluster

package dataset_test

import (
	"flag"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Parallel tests mostly wait for Kubernetes.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// testAtOnce runs tests in parallel that do not disturb each other: each has its own namespaces and its
// own changes of nodes. They mostly wait for Kubernetes. The longest begin first.
func (k *kubelets) testAtOnce(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"VCK", k.testVCK},
		{"displacing", k.testDisplacing},
		{"every matching node", k.testEveryNode},
		{"labels that flap", k.testKept},
		{"too few nodes", k.testTooFewNodes},
		{"examples", k.testExamples},
		{"edits", k.testEdited},
		{"shared", k.testShared},
		{"peers", k.testPeers},
		{"replicas", k.testReplicas},
		{"streaming", k.testStream},
		{"sources", k.testSources},
		{"failures", k.testFailures},
		{"refresh", k.testRefresh},
		{"quota", k.testQuota},
		{"stored by VCK", k.testStored},
		{"many replicas", k.testMany},
		{"upload", k.testUpload},
		{"eviction", k.testEviction},
		{"long names", k.testLongNames},
		{"deleted while loading", k.testDeletedWhileLoading},
		{"strangers", k.testStrangers},
		{"policies of loaders", k.testLoaderPolicies},
		{"policies", k.testPolicies},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}
