// Command conformance is the part of Kubernetes' end-to-end tests that applies to every CSI driver, the external
// storage suite. The binary is named e2e.test.
//
// With the argument images it prints the names of the images of the suite's pods.
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
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init" // dumps the namespace after a failure
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	_ "k8s.io/kubernetes/test/e2e/storage/external" // --storage.testdriver, which defines the tests
	manifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	"k8s.io/kubernetes/test/utils/image"
)

// images are the images that the suite uses with flexlvm.
var images = []image.ImageID{image.Agnhost, image.BusyBox, image.GlibcDnsTesting, image.Nginx}

// outcome stands in for testing.T.
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
