// Csicall makes one call of the CSI driver, as kubelet does, with the options of a FlexVolume, so that the power
// cut tests use the same volumes with both drivers.
//
//	csicall mount|expand TARGET OPTIONS [SIZE]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/vm/csinode"
)

const (
	socket    = "/run/csicall.sock"
	patience  = time.Minute
	namespace = "kubernetes.io/pod.namespace"
	name      = "kubernetes.io/pvOrVolumeName"
	kubelets  = "kubernetes.io/" // what kubelet adds to the options
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "csicall:", err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	if len(args) < 3 {
		return errors.New("csicall mount|expand TARGET OPTIONS [SIZE]")
	}
	spec, err := specOf(args[2])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	log := logrus.New()
	log.SetOutput(io.Discard)
	engine, err := node.New(node.Config{Log: log}, command.New("", log))
	if err != nil {
		return err
	}
	n, err := csinode.Start(ctx, socket, engine)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	switch {
	case args[0] == "mount":
		return n.Mount(ctx, spec, args[1])
	case args[0] == "expand" && len(args) == 4:
		size, err := volume.ParseBytes("SIZE", args[3])
		if err != nil {
			return err
		}
		return n.Expand(ctx, spec, args[1], size)
	}
	return fmt.Errorf("no call %q", args)
}

// specOf parses the options that kubelet passes to the FlexVolume driver.
func specOf(text string) (volume.Spec, error) {
	given := map[string]string{}
	if err := json.Unmarshal([]byte(text), &given); err != nil {
		return volume.Spec{}, fmt.Errorf("read options: %w", err)
	}
	options := map[string]string{}
	for key, value := range given {
		if !strings.HasPrefix(key, kubelets) {
			options[key] = value
		}
	}
	spec, err := volume.ParseOptions(options)
	spec.Name, spec.Namespace = volume.Name(given[name]), given[namespace]
	return spec, err
}
