package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/cgroup"
	commands "github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/csidoor"
	"github.com/flexlvm/flexlvm/internal/hostns"
	"github.com/flexlvm/flexlvm/internal/logging"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/version"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// nodeVariable is the environment variable with the name of the pod's node.
const nodeVariable = "NODE_NAME"

// healthVariable is the environment variable with the address of the health check.
const healthVariable = "HEALTH_ADDRESS"

type options struct {
	node      string
	socket    string
	health    string
	hostNS    bool
	zeroRate  string
	logLevel  string
	logFormat string
}

const long = `csi serves kubelet's calls for PersistentVolumes of the CSI driver flexlvm.io:
mount, unmount, grow and measure. It does not contact the API server and needs no
token. While it is not running, running pods are not affected, and kubelet retries
its calls.

One socket serves both CSI's node service and the registration with kubelet, which
finds it in its directory plugins_registry. Only root can open it.

It runs the host's LVM, and therefore enters the host's namespaces first: its pod
must be privileged and have hostPID: true. By hand on a node:

  csi --node-name=NODE`

func command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:           "csi",
		Short:         "Mount the volumes of one node through CSI",
		Long:          long,
		Version:       version.String,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return o.start(cmd.Context()) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.node, "node-name", os.Getenv(nodeVariable), "name of the Node that this runs on (default: the environment variable "+nodeVariable+")")
	f.StringVar(&o.socket, "socket", csidoor.DefaultSocket, "path of the socket, in kubelet's directory plugins_registry")
	f.StringVar(&o.health, "health-address", os.Getenv(healthVariable), "address that /healthz is served on; empty: none (default: the environment variable "+healthVariable+")")
	f.StringVar(&o.zeroRate, "zero-rate", "256Mi", "rate at which raw block volumes are zeroed before pods get them, in bytes per second; 0: no limit")
	f.BoolVar(&o.hostNS, "host-namespaces", true, "enter the host's namespaces first; false if the process already runs on the host")
	f.StringVar(&o.logLevel, "log-level", "info", "lowest level that is logged: error, warning, info, debug or trace")
	f.StringVar(&o.logFormat, "log-format", "json", "format of the log: json or text")
	return cmd
}

// start validates the flags, enters the host's namespaces, where the host's LVM is, by executing the program
// again, and serves.
func (o options) start(ctx context.Context) error {
	if o.node == "" {
		return fmt.Errorf("--node-name is empty; give it, or set %s (in a pod from the field spec.nodeName)", nodeVariable)
	}
	rate, err := o.rate()
	if err != nil {
		return err
	}
	log, err := logging.New(os.Stderr, o.logFormat, o.logLevel)
	if err != nil {
		return err
	}
	if o.hostNS {
		if _, err := hostns.Enter(); err != nil {
			return err
		}
	}
	// Only now, because the execve would drop a signal that was caught before it.
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return o.run(ctx, log, rate)
}

// rate returns the limit for zeroing; 0 if there is none.
func (o options) rate() (volume.Bytes, error) {
	if o.zeroRate == "0" {
		return 0, nil
	}
	return volume.ParseBps("--zero-rate", o.zeroRate)
}

func (o options) run(ctx context.Context, log *logrus.Logger, zeroRate volume.Bytes) error {
	host, release, err := cgroup.New(cgroup.Root).InHostGroup(commands.New("", log))
	defer release()
	if err != nil {
		log.WithError(err).Info("LVM runs in the control group of this driver, with its CPU share and its memory limit")
	}
	behind := &settler{log: log}
	engine, err := node.New(node.Config{Log: log, RoomTimeout: node.DefaultRoomTimeout, ZeroRate: zeroRate, Settle: behind.settle}, host)
	if err != nil {
		return err
	}
	behind.engine = engine
	if o.health != "" {
		end, err := serveHealth(ctx, o.health, o.socket)
		if err != nil {
			return err
		}
		defer func() { _ = end() }()
	}
	ticker := time.NewTicker(sweepPeriod)
	defer ticker.Stop()
	var swept sync.WaitGroup
	defer swept.Wait()
	sweeping, end := context.WithCancel(ctx)
	defer end()
	swept.Go(func() { sweep(sweeping, ticker.C, engine.CloseUnused, log) })
	log.WithFields(logrus.Fields{"version": version.String, "node": o.node}).Info("flexlvm CSI driver starts")
	err = csidoor.Serve(ctx, csidoor.Config{Socket: o.socket, Node: o.node, Version: version.String, Log: log}, engine)
	behind.wait()
	if err != nil {
		return err
	}
	log.Info("flexlvm CSI driver has ended")
	return nil
}
