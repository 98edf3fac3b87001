package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/install"
)

func (d *Doctor) checkDirs(context.Context) []Finding {
	var all []Finding
	for _, dir := range d.cfg.Dirs {
		all = append(all, checkDir(dir.What, d.path(dir.Path))...)
	}
	return all
}

// checkDir reports whether files can be created in a directory, or the directory itself if it does not exist
// yet.
func checkDir(what, path string) []Finding {
	dir := path
	for {
		info, err := os.Stat(dir)
		if errors.Is(err, os.ErrNotExist) && dir != "/" {
			dir = filepath.Dir(dir)
			continue
		}
		if err != nil {
			return fail(what, err.Error(), "correct it, as root")
		}
		if !info.IsDir() {
			return fail(what, dir+" is not a directory", "move it away")
		}
		break
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fail(what, fmt.Sprintf("%s cannot be written to: %s", dir, err), "make it writable; is its file system mounted read-only?")
	}
	if dir != path {
		return ok(what, path+" is not there yet; the driver makes it")
	}
	return ok(what, path)
}

func (d *Doctor) checkDriver(ctx context.Context) []Finding {
	const check = "driver"
	if d.cfg.NoDriver {
		return ok(check, "no FlexVolume driver is expected here")
	}
	place, do := d.cfg.Place, d.installAdvice()
	var all []Finding
	if names, err := place.Foreign(); err != nil {
		all = append(all, warn(check, err.Error(), "run it as root")...)
	} else if len(names) > 0 {
		all = append(all, warn(check, fmt.Sprintf("%s contains files that are not flexlvm's: %s", place.Dir(), strings.Join(names, ", ")), "move it away; kubelet calls the driver whenever something changes there")...)
	}
	if place.Unfinished() {
		all = append(all, warn(check, "an installation was cut short", do)...)
	}
	info, err := os.Lstat(place.Driver())
	switch {
	case errors.Is(err, os.ErrNotExist):
		return append(all, fail(check, place.Driver()+" is not there", do)...)
	case err != nil:
		return append(all, fail(check, err.Error(), do)...)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return append(all, fail(check, place.Driver()+" is not a program", do)...)
	}
	return append(all, d.callDriver(ctx, check, do)...)
}

// installAdvice returns what to do to install the driver. Where the node daemon runs the checks, an administrator reads
// them elsewhere, and the only `flexlvm` on the node may be the driver that is missing or broken.
func (d *Doctor) installAdvice() string {
	if d.cfg.InDaemon {
		return "see the log of the node's pod of DaemonSet flexlvm-installer (no pod: its node selector or tolerations exclude the node); delete the pod to install its driver again"
	}
	if dir := d.cfg.Place.PluginDir(); dir != install.DefaultPluginDir {
		return fmt.Sprintf("run `flexlvm install --plugin-dir %s`", argument(dir, "DIR"))
	}
	return "run `flexlvm install`"
}

// versionAdvice returns what to do if the driver is of another release than the running program.
func (d *Doctor) versionAdvice() string {
	if d.cfg.InDaemon {
		return "wait if an upgrade is under way; otherwise " + d.installAdvice()
	}
	return "if this one is wanted, " + d.installAdvice()
}

// callDriver calls the installed driver as kubelet does first.
func (d *Doctor) callDriver(ctx context.Context, check, do string) []Finding {
	name := filepath.Base(d.cfg.Place.Driver())
	out, err := d.host.Driver.CommandContext(ctx, name, "init").Output()
	if err != nil || !strings.Contains(string(out), `"status":"Success"`) {
		detail := "does not answer `init`"
		if err != nil {
			detail += ": " + err.Error()
		}
		return fail(check, detail, do)
	}
	out, err = d.host.Driver.CommandContext(ctx, name, "version").Output()
	if err != nil {
		return fail(check, "does not report its version: "+err.Error(), do)
	}
	fields := strings.Fields(string(out))
	if len(fields) < 2 {
		return fail(check, "does not report its version", do)
	}
	if installed := fields[1]; installed != d.cfg.Version {
		return warn(check, fmt.Sprintf("%s is installed, this program is %s", installed, d.cfg.Version), d.versionAdvice())
	}
	return ok(check, fmt.Sprintf("%s, %s", d.cfg.Version, d.cfg.Place.Driver()))
}
