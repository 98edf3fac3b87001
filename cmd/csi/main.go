// Command csi is the CSI driver of flexlvm on a node, the second way by which kubelet mounts
// its volumes, beside the FlexVolume driver.
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
