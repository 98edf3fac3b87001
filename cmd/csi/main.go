// Command csi is flexlvm's CSI driver on a node, an alternative to the FlexVolume driver through which kubelet
// mounts volumes.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "csi:", err)
		os.Exit(1)
	}
}
