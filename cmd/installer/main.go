// Command installer installs the FlexVolume driver of this image in kubelet's volume plugin directory, and keeps
// it there, as `flexlvm install --wait` does. It is a separate program because it stays in memory on every node,
// so it uses no command-line library and links little else.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/install"
	"github.com/flexlvm/flexlvm/internal/version"
)

const usage = `usage: installer [--plugin-dir=DIR] [--driver=FILE] [--interval=1m]

Installs the FlexVolume driver flexlvm.io/flexlvm where kubelet looks for it, runs
until SIGTERM, and restores the driver if it is removed or damaged. A driver that
another installation has put in its place is not changed. By hand on a node,
'flexlvm install --wait' does the same.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the program's exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("installer", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, usage)
		f.PrintDefaults()
	}
	var (
		dir         = f.String("plugin-dir", install.DefaultPluginDir, "kubelet's --volume-plugin-dir")
		driver      = f.String("driver", "/flexlvm", "path of the driver in the image")
		interval    = f.Duration("interval", time.Minute, "interval between checks of the driver")
		showVersion = f.Bool("version", false, "print the release")
	)
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // Parse has printed why
	case *showVersion:
		fmt.Fprintln(stdout, "installer", version.String)
		return 0
	case f.NArg() > 0:
		fmt.Fprintf(stderr, "installer: unknown argument %q; installer --help lists all flags\n", f.Arg(0))
		return 2
	case *interval <= 0:
		fmt.Fprintf(stderr, "installer: --interval %s: must be more than 0\n", *interval)
		return 2
	}
	if err := keep(ctx, *dir, *driver, *interval, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "installer:", err)
		return 1
	}
	return 0
}

// installTimeout is the timeout of the installation: another installer may hold its lock.
const installTimeout = 2 * time.Minute

func keep(ctx context.Context, dir, driver string, interval time.Duration, stdout, stderr io.Writer) error {
	place, err := install.At(dir)
	if err != nil {
		return fmt.Errorf("--plugin-dir: %w", err)
	}
	bounded, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	changed, err := place.Install(bounded, driver)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(stdout, place.Report(changed)); err != nil {
		return err
	}
	log := logrus.New()
	log.SetOutput(stderr)
	return place.Keep(ctx, driver, interval, log)
}
