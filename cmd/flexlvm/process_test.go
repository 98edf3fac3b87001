package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// built is the program, with its log in the test's directory.
type built struct {
	path string
	log  string
}

var program built // set once by TestMain: linking takes seconds

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "flexlvm-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program = built{path: filepath.Join(dir, "flexlvm"), log: filepath.Join(dir, "log", "driver.log")}
	build := exec.Command("go", "build", "-trimpath", "-ldflags",
		"-s -w -E main.entry -X main.logFile="+program.log+" -X github.com/flexlvm/flexlvm/internal/version.String=v0.0.0-test", "-o", program.path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

type outcome struct {
	stdout, stderr string
	code           int
}

func run(t *testing.T, args ...string) outcome {
	t.Helper()
	cmd := exec.Command(program.path, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

type reply struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

// call runs a call as kubelet does and checks what holds for every call.
func call(t *testing.T, args ...string) reply {
	t.Helper()
	got := run(t, args...)
	require.Empty(t, got.stderr)
	require.True(t, strings.HasSuffix(got.stdout, "\n") && strings.Count(got.stdout, "\n") == 1, "not one line: %q", got.stdout)
	var r reply
	dec := json.NewDecoder(strings.NewReader(got.stdout))
	require.NoError(t, dec.Decode(&r), got.stdout)
	if r.Status == "Success" {
		require.Equal(t, 0, got.code)
	} else {
		require.Equal(t, 1, got.code)
	}
	return r
}

// options returns the options of a valid call with some changed. An empty value removes a key.
func options(t *testing.T, changes ...string) string {
	t.Helper()
	object := map[string]string{
		"volumeGroup": "no-such-group", "size": "1073741824",
		"kubernetes.io/fsType": "xfs", "kubernetes.io/readwrite": "rw", "kubernetes.io/pvOrVolumeName": "pvc-1",
		"kubernetes.io/pod.name": "web-0", "kubernetes.io/pod.namespace": "shop", "kubernetes.io/pod.uid": "u",
		"kubernetes.io/serviceAccount.name": "default",
	}
	for i := 0; i < len(changes); i += 2 {
		object[changes[i]] = changes[i+1]
		if changes[i+1] == "" {
			delete(object, changes[i])
		}
	}
	b, err := json.Marshal(object)
	require.NoError(t, err)
	return string(b)
}

func TestInit(t *testing.T) {
	const want = `{"status":"Success","capabilities":{"attach":false,"fsGroup":true,"requiresFSResize":true,"selinuxRelabel":true,"supportsMetrics":true}}` + "\n"
	_ = os.RemoveAll(filepath.Dir(program.log))
	require.Equal(t, outcome{want, "", 0}, run(t, "init"))
	require.NoDirExists(t, filepath.Dir(program.log), "init touches nothing")
}

// The program inherits kubelet's environment. No variable may make it print, because kubelet would
// parse the output as part of the reply.
func TestEnvironmentPrintsNothing(t *testing.T) {
	want := run(t, "init")
	for _, value := range []string{"inittrace=1", "inittrace=1,schedtrace=1,gctrace=1", ""} {
		for _, after := range []string{"", "X=1"} {
			t.Setenv("GODEBUG", value)
			t.Setenv("ZZ", after)
			require.Equal(t, want, run(t, "init"), value)
		}
	}
	// The same holds for an empty environment.
	cmd := exec.Command(program.path, "init")
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err)
	require.Equal(t, want.stdout, string(out))

	released, err := os.ReadFile("../../tools/release/programs.go")
	require.NoError(t, err)
	require.Contains(t, string(released), `module + "/cmd/flexlvm=" + link + entryFlag(arch)`, "what is released is linked as this test's program")
}

// TestLeanBinary checks the program's size, because kubelet waits for `init` under a lock. If
// text/template is reachable, as through Cobra's Set…Template functions, the linker keeps every method
// of every type: the program is a third larger and starts a quarter slower.
func TestLeanBinary(t *testing.T) {
	b, err := os.ReadFile(program.path)
	require.NoError(t, err)
	require.False(t, bytes.Contains(b, []byte("text/template.(*state).evalField")), "text/template is linked")
	require.True(t, bytes.Contains(b, []byte("internal/flexvolume.handler.answer")), "the binary holds no names, so this test finds none")
	for _, heavy := range []string{"net/http.", "google.golang.org/", "crypto/internal/fips140", "compress/gzip."} {
		require.False(t, bytes.Contains(b, []byte(heavy)), heavy)
	}
	for _, name := range regexp.MustCompile(`k8s\.io/[a-z-]+`).FindAllString(string(b), -1) {
		require.Equal(t, "k8s.io/utils", name, "of which the driver links exec, that imports the standard library alone")
	}
}

func TestVerbsThatAreNotOurs(t *testing.T) {
	for _, args := range [][]string{
		{"getvolumename", "{}"}, {"attach", "{}", "node"}, {"expandvolume"}, {"mountdevice", "a", "b", "c"},
		{"MOUNT"}, {""}, {"../mount"}, {"volume"}, {"\xff"},
	} {
		got := run(t, args...)
		require.Equal(t, outcome{"{\"status\":\"Not supported\"}\n", "", 1}, got, args)
	}
}

func TestBadCalls(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.Mkdir(empty, 0o700))
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(empty, link))

	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"init with an argument":  {[]string{"init", "x"}, "arguments of init"},
		"mount alone":            {[]string{"mount"}, "arguments of mount"},
		"mount of three":         {[]string{"mount", empty, options(t), "x"}, "arguments of mount"},
		"unmount alone":          {[]string{"unmount"}, "arguments of unmount"},
		"expandfs alone":         {[]string{"expandfs"}, "arguments of expandfs"},
		"no JSON":                {[]string{"mount", empty, "{"}, "options"},
		"an array":               {[]string{"mount", empty, "[]"}, "options"},
		"an empty argument":      {[]string{"mount", empty, ""}, "options"},
		"not UTF-8":              {[]string{"mount", empty, "{\"\xff\":1}"}, "\ufffd"},
		"unknown option":         {[]string{"mount", empty, options(t, "colour", "blue")}, "colour: is not an option of flexlvm; the options are volumeGroup, volumeGroupUUID"},
		"no size":                {[]string{"mount", empty, options(t, "size", "")}, "size: is missing"},
		"size twice":             {[]string{"mount", empty, `{"size":"1","size":"1"}`}, "size: is given twice"},
		"size -1":                {[]string{"mount", empty, options(t, "size", "-1")}, `size "-1"`},
		"size 0":                 {[]string{"mount", empty, options(t, "size", "0")}, `size "0"`},
		"size 1.5":               {[]string{"mount", empty, options(t, "size", "1.5")}, `size "1.5"`},
		"size 2^63":              {[]string{"mount", empty, options(t, "size", "9223372036854775808")}, `size "9223372036854775808"`},
		"name with a slash":      {[]string{"mount", empty, options(t, "kubernetes.io/pvOrVolumeName", "a/b")}, "kubernetes.io/pvOrVolumeName"},
		"name ..":                {[]string{"mount", empty, options(t, "volume", "..")}, `volume ".."`},
		"name -f":                {[]string{"mount", empty, options(t, "volume", "-f")}, `volume "-f"`},
		"name of LVM's":          {[]string{"mount", empty, options(t, "volume", "snapshot0")}, "LVM reserves"},
		"name of 300":            {[]string{"mount", empty, options(t, "volume", strings.Repeat("x", 300))}, "300 characters"},
		"secret":                 {[]string{"mount", empty, options(t, "kubernetes.io/secret/key", "aHVudGVyMg==")}, "kubernetes.io/secret: is not accepted"},
		"layout":                 {[]string{"mount", empty, options(t, "layout", "thin")}, "layout"},
		"target relative":        {[]string{"mount", "pods/x", options(t)}, `mount directory "pods/x": is not absolute`},
		"target empty":           {[]string{"mount", "", options(t)}, "mount directory"},
		"target is /":            {[]string{"mount", "/", options(t)}, "mount directory"},
		"target missing":         {[]string{"mount", filepath.Join(dir, "none"), options(t)}, "does not exist"},
		"target a file":          {[]string{"mount", file, options(t)}, "is not a directory"},
		"target a link":          {[]string{"mount", link, options(t)}, "is not a directory"},
		"target with a dot":      {[]string{"mount", dir + "/../x", options(t)}, "mount directory"},
		"target too long":        {[]string{"mount", "/" + strings.Repeat("x", 5000), options(t)}, "mount directory"},
		"unmount relative":       {[]string{"unmount", "x"}, "mount directory"},
		"expandfs to less":       {[]string{"expandfs", options(t), "", empty, "1", "2"}, "new size"},
		"expandfs to words":      {[]string{"expandfs", options(t), "", empty, "lots", "2"}, `new size "lots"`},
		"expandfs, half options": {[]string{"expandfs", options(t)[:40], "", empty, "2", "1"}, "options"},
	} {
		t.Run(name, func(t *testing.T) {
			got := call(t, c.args...)
			require.Equal(t, "Failure", got.Status)
			require.Contains(t, got.Message, c.says)
			require.NotContains(t, got.Message, "aHVudGVyMg")
		})
	}
	entries, err := os.ReadDir(empty)
	require.NoError(t, err)
	require.Empty(t, entries)
	log, err := os.ReadFile(program.log)
	require.NoError(t, err)
	require.NotContains(t, string(log), "aHVudGVyMg", "a secret must not get into the log")
	require.Contains(t, string(log), "call refused")
}

// TestUnmountOfNothing checks that unmounting a directory that was never mounted succeeds, because
// kubelet does that.
func TestUnmountOfNothing(t *testing.T) {
	dir := t.TempDir()
	require.Equal(t, reply{Status: "Success"}, call(t, "unmount", dir))
	require.Equal(t, reply{Status: "Success"}, call(t, "unmount", filepath.Join(dir, "none")))
}

func TestPeopleAreSpokenTo(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		stdout string
		stderr string
		code   int
	}{
		"nothing":          {nil, "Available Commands", "", 0},
		"--help":           {[]string{"--help"}, "Available Commands", "", 0},
		"-h":               {[]string{"-h"}, "Available Commands", "", 0},
		"help":             {[]string{"help"}, "Available Commands", "", 0},
		"help on a verb":   {[]string{"help", "vg", "create"}, "--dry-run", "", 0},
		"version":          {[]string{"version"}, "flexlvm v0.0.0-test (go", "", 0},
		"--version":        {[]string{"--version"}, "flexlvm v0.0.0-test (go", "", 0},
		"completion":       {[]string{"completion", "bash"}, "__complete", "", 0},
		"__complete":       {[]string{"__complete", "vol"}, "volumes", "", 0},
		"volumes":          {[]string{"volumes"}, "list", "", 0},
		"unknown beneath":  {[]string{"volumes", "lost"}, "", `unknown command "lost"`, 1},
		"show without":     {[]string{"volumes", "show"}, "", "name one volume", 1},
		"forget without":   {[]string{"volumes", "forget"}, "", "name one volume", 1},
		"retain of two":    {[]string{"volumes", "retain", "a", "b"}, "", "name one volume (got 2 names)", 1},
		"undelete without": {[]string{"volumes", "undelete"}, "", "name one volume", 1},
		"undelete, help":   {[]string{"volumes", "undelete", "-h"}, "| kubectl apply -f -", "", 0},
		"forget, help":     {[]string{"volumes", "forget", "-h"}, "The API server is not contacted", "", 0},
		"retain, help":     {[]string{"volumes", "retain", "-h"}, "from eviction, however full the disk gets", "", 0},
		"undelete, policy": {[]string{"volumes", "undelete", "a", "--reclaim-policy", "Recycle"}, "", "give Retain or Delete", 1},
		"undelete, claim":  {[]string{"volumes", "undelete", "a", "--claim", "My_Data"}, "", `--claim "My_Data": cannot be the name of an object`, 1},
		"undelete, class":  {[]string{"volumes", "undelete", "a", "--storage-class", "a\nb: c"}, "", `--storage-class "a\nb: c"`, 1},
		"undelete, node":   {[]string{"volumes", "undelete", "a", "--node", "Node 1"}, "", `--node "Node 1"`, 1},
		"undelete, host":   {[]string{"volumes", "undelete", "a", "--hostname", "a/b"}, "", `--hostname "a/b"`, 1},
		"undelete, group":  {[]string{"volumes", "undelete", "a", "--group", "a/b"}, "", `--group "a/b"`, 1},
		"unknown flag":     {[]string{"doctor", "--deep"}, "", "unknown flag: --deep", 1},
		"unknown format":   {[]string{"volumes", "list", "-o", "yaml"}, "", "give table or json", 1},
		"bad group":        {[]string{"doctor", "--group", "a/b"}, "", `--group "a/b"`, 1},
		"vg, no device":    {[]string{"vg", "create"}, "", "DEVICE: is missing", 1},
		"vg, small":        {[]string{"vg", "create", "--metadata-size", "1MiB", "/dev/null"}, "", `--metadata-size "1 MiB": is less than 16 MiB`, 1},
		"vg, no size":      {[]string{"vg", "create", "--metadata-size", "much", "/dev/null"}, "", `--metadata-size "much": is not a size`, 1},
		"vg, bad name":     {[]string{"vg", "create", "--name", "-n", "/dev/null"}, "", `--name "-n"`, 1},
		"vg, no consent":   {[]string{"vg", "create", "--loop", "/srv/a.img", "--size", "10Gi"}, "", "--for-tests: is missing", 1},
		"vg, loop's size":  {[]string{"vg", "create", "--loop", "/srv/a.img", "--for-tests"}, "", "--size: is not a size", 1},
		"vg, loop's path":  {[]string{"vg", "create", "--loop", "a.img", "--size", "10Gi", "--for-tests"}, "", `--loop "a.img": is not the absolute path`, 1},
		"vg, loop, disk":   {[]string{"vg", "create", "--loop", "/srv/a.img", "--size", "10Gi", "--for-tests", "/dev/null"}, "", "leave out /dev/null", 1},
		"vg, loop, dry":    {[]string{"vg", "create", "--loop", "/srv/a.img", "--dry-run"}, "", "--dry-run: cannot be combined with --loop", 1},
		"vg, loop, area":   {[]string{"vg", "create", "--loop", "/srv/a.img", "--metadata-size", "32MiB"}, "", `--metadata-size "32MiB": cannot be combined with --loop, which uses 16MiB`, 1},
		"vg, no loop":      {[]string{"vg", "create", "--for-tests", "/dev/null"}, "", "--loop: is missing", 1},
		"install, where":   {[]string{"install", "--plugin-dir", "exec"}, "", "--plugin-dir", 1},
		"install, never":   {[]string{"install", "--interval", "0s"}, "", "--interval", 1},
		"uninstall, where": {[]string{"uninstall", "--plugin-dir", "exec"}, "", "--plugin-dir", 1},
		"too many words":   {[]string{"doctor", "now"}, "", `unknown command "now"`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got := run(t, c.args...)
			require.Equal(t, c.code, got.code)
			require.Contains(t, got.stdout, c.stdout)
			if c.stderr == "" {
				require.NotContains(t, got.stderr, "flexlvm:")
				return
			}
			require.Contains(t, got.stderr, "flexlvm: ")
			require.Contains(t, got.stderr, c.stderr)
			require.Empty(t, got.stdout)
		})
	}
}

func TestInstallAndUninstall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "exec")
	driver := filepath.Join(dir, "flexlvm.io~flexlvm", "flexlvm")
	got := run(t, "install", "--plugin-dir", dir, "--verify")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, driver+" is missing or is not this release")
	require.NoDirExists(t, dir, "it only looks")
	got = run(t, "install", "--plugin-dir", dir)
	require.Equal(t, outcome{"flexlvm v0.0.0-test installed: " + driver + "\n", "", 0}, got)
	got = run(t, "install", "--plugin-dir", dir)
	require.Equal(t, outcome{"flexlvm v0.0.0-test is installed already: " + driver + "\n", "", 0}, got)
	got = run(t, "install", "--plugin-dir", dir, "--verify")
	require.Equal(t, outcome{"flexlvm v0.0.0-test is installed and answers: " + driver + "\n", "", 0}, got)

	out, err := exec.Command(driver, "init").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "Success")
	out, err = exec.Command(driver, "install", "--plugin-dir", dir).Output()
	require.NoError(t, err, "a driver may install itself")
	require.Contains(t, string(out), "is installed already")

	got = run(t, "uninstall", "--plugin-dir", dir, "--force")
	require.Equal(t, outcome{"flexlvm uninstalled: " + driver + "\n", "", 0}, got)
	require.NoDirExists(t, filepath.Dir(driver))
	got = run(t, "uninstall", "--plugin-dir", dir, "--force")
	require.Equal(t, outcome{"flexlvm was not installed: " + driver + "\n", "", 0}, got)
}

// TestInstallWaits checks that install and uninstall run until SIGTERM, as in a DaemonSet, and that
// install repairs the driver meanwhile.
func TestInstallWaits(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "exec")
	driver := filepath.Join(dir, "flexlvm.io~flexlvm", "flexlvm")
	for _, verb := range []string{"install", "uninstall"} {
		args := []string{verb, "--plugin-dir", dir, "--wait", "--interval", "20ms"}
		if verb == "uninstall" {
			args = append(args, "--force")
		}
		cmd := exec.Command(program.path, args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		there := func() bool { _, err := os.Lstat(driver); return err == nil }
		gone := func() bool { return !there() }
		if verb == "install" {
			said, err := bufio.NewReader(stdout).ReadString('\n')
			require.NoError(t, err)
			require.Contains(t, said, " installed: ")
			require.NoError(t, os.Remove(driver))
			require.Eventually(t, there, time.Minute, 10*time.Millisecond)
		} else {
			require.Eventually(t, gone, time.Minute, 10*time.Millisecond)
		}
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait(), stderr.String())
	}
}
