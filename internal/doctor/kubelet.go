package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

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
		return fail(check, fmt.Sprintf("%s, but kubelet looks in %q", dir, used), fmt.Sprintf("install there: pluginDir in installer/settings (with Helm, the value pluginDir), or `flexlvm install --plugin-dir %s`, and give the same to `flexlvm doctor`", argument(used, "DIR")))
	case used == "":
		return ok(check, dir+" (kubelet's command line and configuration name no other)")
	}
	return ok(check, dir+", as kubelet's")
}

// argument returns text as an argument of a command in a finding. It returns placeholder instead of a text that a
// shell or a terminal may interpret.
func argument(text, placeholder string) string {
	if strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._~-") != "" || strings.HasPrefix(text, "-") {
		return placeholder
	}
	return text
}

// kubeletPluginDir returns the plugin directory from the command line of a running kubelet, or from its
// configuration. It is empty if both leave it at the default.
func kubeletPluginDir(root string) (dir string, running bool) {
	processes, err := filepath.Glob(filepath.Join(root, "proc/[0-9]*"))
	if err != nil {
		return "", false
	}
	for _, process := range processes {
		args, is := kubeletArgs(process, filepath.Join(root, "proc/1"))
		if !is {
			continue
		}
		if dir := flagValue(args, "volume-plugin-dir"); dir != "" {
			return dir, true
		}
		for _, file := range kubeletConfigs(root, args) {
			text, _ := readFile(os.OpenFile, file) // an unreadable file counts as one without the setting
			if value, set := topLevelValue(text, "volumePluginDir"); set {
				dir = value
			}
		}
		return dir, true
	}
	return "", false
}

// maxConfigEntries bounds how many files and directories of kubelet's --config-dir are looked at.
const maxConfigEntries = 1000

// kubeletConfigs returns the configuration files that a kubelet with these arguments reads, in the order in which it
// merges them: a later file overrides the earlier ones.
func kubeletConfigs(root string, args []string) (files []string) {
	if file := flagValue(args, "config"); file != "" {
		files = append(files, filepath.Join(root, file))
	}
	dir := flagValue(args, "config-dir")
	if dir == "" {
		return files
	}
	// Kubelet finds these files with the same function, so subdirectories and the order are the same.
	entries := 0
	_ = filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
		entries++
		switch {
		case entries > maxConfigEntries:
			return fs.SkipAll
		case err == nil && !entry.IsDir() && filepath.Ext(path) == ".conf":
			files = append(files, path)
		}
		return nil // an unreadable directory counts as an empty one
	})
	return files
}

// kubeletArgs returns the command line of a process if it is the host's kubelet. Anybody who may create pods can run a
// process of that name, whose command line would choose what is opened here as root. So only a process of root counts,
// and only in the PID and user namespaces of process 1: a pod needs `hostPID` for that, which the Pod Security level
// `baseline` forbids.
func kubeletArgs(process, first string) (args []string, is bool) {
	// All is read below one open directory: another process may take over the number.
	dir, err := os.OpenRoot(process)
	if err != nil {
		return nil, false
	}
	defer func() { _ = dir.Close() }()
	if name, err := readFile(dir.OpenFile, "comm"); err != nil || strings.TrimSpace(name) != "kubelet" {
		return nil, false
	}
	if !isRoots(dir) || !sharesNamespace(dir, first, "ns/pid") || !sharesNamespace(dir, first, "ns/user") {
		return nil, false
	}
	text, err := readFile(dir.OpenFile, "cmdline")
	if err != nil {
		return nil, false
	}
	return strings.Split(strings.TrimRight(text, "\x00"), "\x00"), true
}

// isRoots reports whether all UIDs of a process are 0. The owner of its directory in proc does not show that, because
// the kernel gives the directory of a process that cannot be dumped to root.
func isRoots(process *os.Root) bool {
	status, err := readFile(process.OpenFile, "status")
	if err != nil {
		return false
	}
	for _, line := range strings.Split(status, "\n") {
		if ids, found := strings.CutPrefix(line, "Uid:"); found {
			return slices.Equal(strings.Fields(ids), []string{"0", "0", "0", "0"}) // real, effective, saved, file system
		}
	}
	return false
}

// sharesNamespace reports whether a process is in the same namespace as process 1. A kernel without user namespaces
// has no such file for either.
func sharesNamespace(process *os.Root, first, file string) bool {
	one, err := os.Readlink(filepath.Join(first, file))
	other, err2 := process.Readlink(file)
	if errors.Is(err, os.ErrNotExist) && errors.Is(err2, os.ErrNotExist) {
		return file == "ns/user"
	}
	return err == nil && err2 == nil && one == other
}

// maxText is the maximum size of a file that readFile reads.
const maxText = 1 << 20

// readFile reads a regular file of at most maxText bytes. It never waits, as opening a pipe can.
func readFile(open func(string, int, os.FileMode) (*os.File, error), name string) (string, error) {
	f, err := open(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("read %q: it is not a regular file", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxText {
		return "", fmt.Errorf("read %q: it has more than %d bytes", name, maxText)
	}
	return string(text), nil
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

// topLevelValue returns the string with this key at the top level of a JSON file, or of a YAML file in block style, and
// whether the file has the key. The driver links no YAML library, to keep its start short: kubelet waits for it.
func topLevelValue(text, key string) (value string, set bool) {
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &object) == nil {
		raw, set := object[key]
		_ = json.Unmarshal(raw, &value) // if the key is absent or not a string, value stays empty
		return value, set
	}
	for _, line := range strings.Split(text, "\n") {
		k, v, found := strings.Cut(line, ":") // keys of lower levels are indented, so they do not match
		if found && strings.Trim(strings.TrimRight(k, " "), `"'`) == key {
			v, _, _ = strings.Cut(v, " #")
			return strings.Trim(strings.TrimSpace(v), `"'`), true
		}
	}
	return "", false
}
