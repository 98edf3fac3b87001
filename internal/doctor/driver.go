package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
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

// checkPluginDir compares the configured plugin directory with kubelet's.
func (d *Doctor) checkPluginDir(context.Context) []Finding {
	const check = "plugin directory"
	if d.cfg.NoDriver {
		return nil
	}
	dir := d.cfg.Place.PluginDir()
	used, running := kubeletPluginDir(d.path(""))
	switch {
	case !running:
		return warn(check, dir+"; no kubelet runs here that could be asked", "make sure that it is kubelet's --volume-plugin-dir")
	case used != "" && filepath.Clean(used) != dir:
		return fail(check, fmt.Sprintf("%s, but kubelet looks in %s", dir, used), fmt.Sprintf("install there: pluginDir in installer/settings (with Helm, the value pluginDir), or `flexlvm install --plugin-dir %s`, and give the same to `flexlvm doctor`", used))
	case used == "":
		return ok(check, dir+" (kubelet's command line names no other)")
	}
	return ok(check, dir+", as kubelet's")
}

// kubeletPluginDir returns the plugin directory from the command line of a running kubelet, or from its
// configuration file. It is empty if both leave it at the default.
func kubeletPluginDir(root string) (dir string, running bool) {
	names, err := filepath.Glob(filepath.Join(root, "proc/[0-9]*/comm"))
	if err != nil {
		return "", false
	}
	for _, comm := range names {
		name, err := os.ReadFile(comm)
		if err != nil || strings.TrimSpace(string(name)) != "kubelet" {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join(filepath.Dir(comm), "cmdline"))
		if err != nil {
			continue
		}
		args := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
		if dir := flagValue(args, "volume-plugin-dir"); dir != "" {
			return dir, true
		}
		if file := flagValue(args, "config"); file != "" {
			text, _ := os.ReadFile(filepath.Join(root, file)) // an unreadable file counts as the default
			return topLevelValue(string(text), "volumePluginDir"), true
		}
		return "", true
	}
	return "", false
}

// flagValue returns the value of --name=value or --name value in arguments.
func flagValue(args []string, name string) string {
	for i, arg := range args {
		flag := strings.TrimLeft(arg, "-")
		if flag == arg {
			continue
		}
		if flag == name && i+1 < len(args) {
			return args[i+1]
		}
		if value, found := strings.CutPrefix(flag, name+"="); found {
			return value
		}
	}
	return ""
}

// topLevelValue returns the string with this key at the top level of a JSON file, or of a YAML file in block style.
// The driver links no YAML library, to keep its start short: kubelet waits for it.
func topLevelValue(text, key string) string {
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &object) == nil {
		var value string
		_ = json.Unmarshal(object[key], &value) // if the key is absent or not a string, value stays empty
		return value
	}
	for _, line := range strings.Split(text, "\n") {
		k, v, found := strings.Cut(line, ":") // keys of lower levels are indented, so they do not match
		if found && strings.Trim(strings.TrimRight(k, " "), `"'`) == key {
			v, _, _ = strings.Cut(v, " #")
			return strings.Trim(strings.TrimSpace(v), `"'`)
		}
	}
	return ""
}

func (d *Doctor) checkDriver(ctx context.Context) []Finding {
	const check = "driver"
	const do = "run `flexlvm install`"
	if d.cfg.NoDriver {
		return ok(check, "no FlexVolume driver is expected here")
	}
	place := d.cfg.Place
	var all []Finding
	if names, err := place.Foreign(); err != nil {
		all = append(all, warn(check, err.Error(), "run it as root")...)
	} else if len(names) > 0 {
		all = append(all, warn(check, fmt.Sprintf("%s holds what is not ours: %s", place.Dir(), strings.Join(names, ", ")), "move it away; kubelet calls the driver whenever something changes there")...)
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
		return fail(check, "does not tell its version: "+err.Error(), do)
	}
	fields := strings.Fields(string(out))
	if len(fields) < 2 {
		return fail(check, "does not tell its version", do)
	}
	if installed := fields[1]; installed != d.cfg.Version {
		return warn(check, fmt.Sprintf("%s is installed, this program is %s", installed, d.cfg.Version), "if this one is wanted, "+do)
	}
	return ok(check, fmt.Sprintf("%s, %s", d.cfg.Version, d.cfg.Place.Driver()))
}
