// Command conformance is the part of Kubernetes' end-to-end tests that any CSI driver can be held
// to, the external storage suite. Those who run it call it e2e.test.
//
// With the argument images it prints the images that the suite's pods run.
package main

import (
	"flag"
	"fmt"
	"os"
	"path"
	"slices"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init" // after a failure, what was in its namespace
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	_ "k8s.io/kubernetes/test/e2e/storage/external" // --storage.testdriver, which defines the tests
	manifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	"k8s.io/kubernetes/test/utils/image"
)

// images are those of the suite that it is called for here.
var images = []image.ImageID{image.Agnhost, image.BusyBox, image.GlibcDnsTesting, image.Nginx}

// outcome takes what testing.T would.
type outcome struct{ failed bool }

func (o *outcome) Fail() { o.failed = true }

func main() {
	if slices.Equal(os.Args[1:], []string{"images"}) {
		for _, id := range images {
			fmt.Println(path.Base(image.GetE2EImage(id)))
		}
		return
	}
	testing.Init() // its flags, which ginkgo sets
	testfiles.AddFileSource(manifests.GetE2ETestingManifestsFS())
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	framework.AfterReadingAllFlags(&framework.TestContext)
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := framework.CreateGinkgoConfig()
	var result outcome
	if !ginkgo.RunSpecs(&result, "Kubernetes external storage suite", suite, reporter) || result.failed {
		os.Exit(1)
	}
}
