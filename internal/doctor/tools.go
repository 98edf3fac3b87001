package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/utils/exec"
)

// A tool is a host program that flexlvm runs, and how to get its version.
type tool struct {
	name       string
	ask        string
	minVersion string // the oldest version that is known to work
	why        string // what older versions lack
	only       string // its only purpose, if most nodes do not need it
}

// LVM's commands are one program under many names. One that reports, one that creates volumes and one that
// creates groups show that they are installed.
func tools() []tool {
	lvm := tool{ask: "--version", minVersion: "2.02.158", why: "reports in JSON"}
	named := func(name string) tool { t := lvm; t.name = name; return t }
	return []tool{
		named("lvs"), named("lvcreate"), named("vgcreate"),
		{name: "mkfs.xfs", ask: "-V", minVersion: "4.10", why: "the options that fix a file system's size"},
		{name: "xfs_db", ask: "-V", minVersion: "4.3", why: "another UUID for the copy of a volume"},
		{name: "wipefs", ask: "--version"},
		{name: "blkid", ask: "--version"},
		{name: "mke2fs", ask: "-V", minVersion: "1.43", why: "project quota, and checksums that allow another UUID", only: "volumes with ext4"},
		{name: "cryptsetup", ask: "--version", minVersion: "2.2", why: "deriving one key at a time", only: "encrypted volumes"},
	}
}

func (d *Doctor) checkTools(ctx context.Context) []Finding {
	var all []Finding
	for _, t := range tools() {
		all = append(all, d.checkTool(ctx, t)...)
	}
	return all
}

func (d *Doctor) checkTool(ctx context.Context, t tool) []Finding {
	out, err := d.host.Tools.CommandContext(ctx, t.name, t.ask).CombinedOutput()
	if errors.Is(err, exec.ErrExecutableNotFound) && t.only != "" {
		return ok(t.name, "is not on this host, and is needed for "+t.only+" alone; for those install its package on the host itself")
	}
	if errors.Is(err, exec.ErrExecutableNotFound) {
		return fail(t.name, err.Error(), "install it on the host itself: the driver runs there, not in a container")
	}
	if err != nil {
		return fail(t.name, err.Error(), "it must run without an error; reinstall its package")
	}
	version := findVersion(string(out))
	if version == "" && t.minVersion == "" {
		return ok(t.name, "is there")
	}
	if version == "" {
		return warn(t.name, "does not report its version", fmt.Sprintf("make sure that it is %s or later", t.minVersion))
	}
	if older(version, t.minVersion) {
		return fail(t.name, fmt.Sprintf("version %s lacks %s", version, t.why), fmt.Sprintf("use %s or later", t.minVersion))
	}
	return ok(t.name, "version "+version)
}

// findVersion returns the first dotted number in a program's output: 2.03.16 in
// "LVM version:     2.03.16(2) (2022-05-18)".
func findVersion(text string) string {
	notOfVersion := func(c rune) bool { return (c < '0' || c > '9') && c != '.' }
	for _, word := range strings.FieldsFunc(text, notOfVersion) {
		if word = strings.Trim(word, "."); strings.Contains(word, ".") {
			return word
		}
	}
	return ""
}

// older compares the numbers of two versions. Missing numbers count as 0.
func older(version, than string) bool {
	have, want := strings.Split(version, "."), strings.Split(than, ".")
	for i := range want {
		h, w := number(have, i), number(want, i)
		if h != w {
			return h < w
		}
	}
	return false
}

func number(parts []string, i int) int {
	if i >= len(parts) {
		return 0
	}
	n, err := strconv.Atoi(parts[i])
	if err != nil {
		return 0
	}
	return n
}
