// Command agnhost is the program of the image of that name, reduced to the commands that the storage tests use.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/test/images/agnhost/mounttest"
	"k8s.io/kubernetes/test/images/agnhost/pause"
)

func main() {
	root := &cobra.Command{Use: "agnhost"}
	root.AddCommand(mounttest.CmdMounttest, pause.CmdPause)
	os.Exit(cli.Run(root))
}
