// Command flexlvm is the FlexVolume driver that kubelet executes, and the command-line tool for operators on a
// node.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/cgroup"
	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/flexvolume"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// logFile is the driver's log file. Tests link with another path.
var logFile = flexvolume.DefaultLog

func main() {
	if args := os.Args[1:]; !isOperatorCommand(args) {
		os.Exit(flexvolume.Serve(flexvolume.Config{LogFile: logFile, Engine: onHost}, args))
	}
	os.Exit(runOperatorCommand())
}

// isOperatorCommand reports whether the arguments are a command of operators. Everything else is treated as a call of
// kubelet, so that a verb which kubelet may add gets a reply that kubelet understands.
func isOperatorCommand(args []string) bool {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return true
	}
	switch args[0] {
	case "help", "version",
		"volumes", "doctor", "vg", "directories", "install", "uninstall",
		"completion", "__complete", "__completeNoDesc": // shell completion calls the last two
		return true
	}
	return false
}

// onHost returns the engine of this host. Another process of this program settles a volume after the reply to
// its first mount, so that kubelet waits for one LVM command less. If that process dies, the next call for the
// volume settles it.
func onHost(log logrus.FieldLogger) (flexvolume.Engine, error) {
	return node.New(node.Config{Log: log, RoomTimeout: node.DefaultRoomTimeout, Settle: func(g volume.Group, n volume.Name) {
		if err := command.Detach(flexvolume.VerbSettle, string(g), string(n)); err != nil {
			log.WithError(err).Warn("could not complete the first mount; the next call for the volume retries it")
		}
	}}, programs(cgroup.Root, log))
}

// programs returns the host's programs. If the host has cgroup v2, they run in flexlvm's own control group: in
// kubelet's, a restart of kubelet's service would kill an LVM command in the middle of its work. The directory of
// the control group stays open until this process ends.
func programs(root string, log logrus.FieldLogger) command.Programs {
	host, _, err := cgroup.New(root).InHostGroup(command.New("", log))
	if err != nil {
		log.WithError(err).Debug("LVM runs in kubelet's control group")
	}
	return host
}

// runOperatorCommand runs a command of an operator.
func runOperatorCommand() (exitCode int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "flexlvm:", err)
		return 1
	}
	return 0
}
