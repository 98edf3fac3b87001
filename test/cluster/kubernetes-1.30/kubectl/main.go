// Command kubectl is kubectl alone. Tests start it thousands of times: as one of the programs of the Kubernetes
// binary it took 69 ms of processor time to start, because the packages of all programs were initialized.
package main

import (
	_ "k8s.io/client-go/plugin/pkg/client/auth" // its authentication plug-ins
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	kubectlutil.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
}
