// Command flexlvm is the FlexVolume driver that kubelet executes, and the
// operator's tool on a node.
package main

import (
	"os"

	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/flexvolume"
	"github.com/flexlvm/flexlvm/internal/node"
)

// logFile is where the driver logs; tests link another path.
var logFile = flexvolume.DefaultLog

func main() {
	os.Exit(flexvolume.Serve(flexvolume.Config{LogFile: logFile, Engine: onHost}, os.Args[1:]))
}

func onHost(log logrus.FieldLogger) (flexvolume.Engine, error) { return node.OnHost(log) }
