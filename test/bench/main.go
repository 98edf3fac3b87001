// Bench measures the figures of docs/benchmarks.md: ratios of medians whose sides are measured in one run, on this
// machine, in a virtual node, with a real API server or with a real S3 server. Run it on an idle machine. Its
// arguments are the parts to run: nodes, users, room, busy, doors, directories, snapshots, control, fetch, peers,
// nfs; the default is all. The parts of control can also be run separately: rates, limits, scale, memory.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/flexlvm/flexlvm/test/bench/control"
	"github.com/flexlvm/flexlvm/test/bench/doors"
	"github.com/flexlvm/flexlvm/test/bench/fetch"
	"github.com/flexlvm/flexlvm/test/bench/figure"
	"github.com/flexlvm/flexlvm/test/bench/room"
	"github.com/flexlvm/flexlvm/test/bench/start"
	"github.com/flexlvm/flexlvm/test/vm"
)

var (
	quarter = flag.Bool("quarter", false, "fetch a quarter of the data only, on a busy machine")
	only    = flag.String("fetch.only", "", "fetch only objects of this size, such as \"16 KiB\"")
	rounds  = flag.Int("rounds", 3, "how often each side of the parts room, busy, snapshots, fetch and peers runs")
	pods    = flag.Int("pods", 0, "so many pods at once only, 1 or 6, in the part room")
)

// small is the number of directory volumes on the node in the part directories.
var small = flag.Int("directories.volumes", 1000, "how many directory volumes the node has in the part directories, and a tenth of that many others")

// Flags for another driver that the part doors compares with the built-in ones.
var (
	doorRounds = flag.Int("doors.rounds", 9, "how often each side of the part doors runs")
	doorWithin = flag.Duration("doors.within", 0, "how long its rounds may take together; as many are run as fit; 0 is no bound")
	class      = flag.String("doors.class", "", "a StorageClass of another driver, which its manifests hold")
	grows      = flag.Bool("doors.grows", true, "whether claims of that class may grow")
	space      = flag.String("doors.namespace", "default", "where the other driver's pods are")
	manifests  = flag.String("doors.manifests", "", "files or folders with a kustomization that install it, with commas between")
	images     = flag.String("doors.images", "", "archives of its images, with commas between")
)

// parts are the available parts, in the order in which they run.
var parts = []struct {
	name string
	take func(ctx context.Context, dir string) error
	of   string // another part that includes this one
}{
	{name: "nodes", take: ofNodes},
	{name: "users", take: func(ctx context.Context, _ string) error { return ofUsers(ctx) }},
	{name: "room", take: func(ctx context.Context, _ string) error {
		return ofRoom(ctx, func(ctx context.Context) ([]string, error) { return room.Measure(ctx, *pods, *rounds) })
	}},
	{name: "busy", take: func(ctx context.Context, _ string) error {
		return ofRoom(ctx, func(ctx context.Context) ([]string, error) { return room.MeasureBusy(ctx, *rounds) })
	}},
	{name: "doors", take: ofDoors},
	{name: "directories", take: func(ctx context.Context, _ string) error { return ofDirectories(ctx) }},
	{name: "snapshots", take: ofSnapshots},
	{name: "rates", take: ofRates, of: "control"},
	{name: "limits", take: ofLimits, of: "control"},
	{name: "scale", take: ofScale, of: "control"},
	{name: "memory", take: ofMemory, of: "control"},
	{name: "fetch", take: ofFetch},
	{name: "peers", take: ofPeers},
	{name: "nfs", take: ofNFS},
}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, wanted []string) error {
	known := map[string]bool{}
	for _, part := range parts {
		known[part.name], known[cmp.Or(part.of, part.name)] = true, true
	}
	for _, name := range wanted {
		if !known[name] {
			return fmt.Errorf("there is no part %q; there are %s", name, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
	}
	dir, err := os.MkdirTemp("", "flexlvm-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, part := range parts {
		if len(wanted) > 0 && !slices.Contains(wanted, part.name) && !slices.Contains(wanted, part.of) {
			continue
		}
		if err := part.take(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

// ofFetch prints the figures of the loader.
func ofFetch(ctx context.Context, dir string) error {
	loader := filepath.Join(dir, "fetch")
	if err := build(ctx, loader, "./cmd/fetch"); err != nil {
		return err
	}
	lines, err := fetch.Run(ctx, fetch.Config{Loader: loader, Dir: dir, Quarter: *quarter, Only: *only, Rounds: *rounds, Log: os.Stderr})
	if err != nil {
		return fmt.Errorf("the figures of the loader: %w", err)
	}
	fmt.Printf("\n%s\n", strings.Join(lines, "\n"))
	return nil
}

// ofUsers prints the figure of a user's waiting time.
func ofUsers(ctx context.Context) error {
	f, err := start.Measure(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s\n%s\n", figure.Header, f)
	return nil
}

// ofRoom prints the figures of a node that is full of unreferenced volumes.
func ofRoom(ctx context.Context, measure func(context.Context) ([]string, error)) error {
	lines, err := measure(ctx)
	fmt.Printf("\n%s\n%s\n", figure.Header, strings.Join(lines, "\n"))
	if err != nil {
		return fmt.Errorf("the figures of a full pool: %w", err)
	}
	return nil
}

// ofDoors prints the figures of the two drivers compared with each other and with others: on a node alone, and on a
// cluster.
func ofDoors(ctx context.Context, dir string) error {
	fmt.Println(figure.Header)
	if err := inNode(ctx, dir, map[string]string{"/flexlvm": "./cmd/flexlvm", "/csi": "./cmd/csi", "/inside": "./test/bench/inside"}, nil, "doors"); err != nil {
		return err
	}
	lines, err := doors.Measure(ctx, doors.Config{
		Rounds: *doorRounds, Within: *doorWithin, Class: *class, Grows: *grows, Namespace: *space, Manifests: listed(*manifests), Images: listed(*images), Log: os.Stderr,
	})
	if err != nil {
		return fmt.Errorf("the figures of the doors: %w", err)
	}
	fmt.Printf("\n%s\n", strings.Join(lines, "\n"))
	return nil
}

// ofDirectories prints the figures of volumes of layout directory compared with logical volumes.
func ofDirectories(ctx context.Context) error {
	lines, err := doors.MeasureDirectories(ctx, doors.Config{Rounds: *rounds, Log: os.Stderr}, *small)
	if err != nil {
		return fmt.Errorf("the figures of directory volumes: %w", err)
	}
	fmt.Printf("\n%s\n", strings.Join(lines, "\n"))
	return nil
}

func listed(value string) []string {
	if value == "" {
		return nil
	}
	return strings.Split(value, ",")
}

// ofRates prints the provisioner's figures compared with a plain loop.
func ofRates(ctx context.Context, dir string) error {
	provisioner := filepath.Join(dir, "provisioner")
	if err := build(ctx, provisioner, "./cmd/provisioner"); err != nil {
		return err
	}
	table, err := control.RunRates(ctx, provisioner, dir, os.Stderr)
	if err != nil {
		return fmt.Errorf("the figures of the control side: %w", err)
	}
	fmt.Printf("\n%s\n%s\n", figure.Header, strings.Join(table, "\n"))
	return nil
}

// ofLimits prints the effect of limits on the provisioner's requests.
func ofLimits(ctx context.Context, dir string) error { return ofLarge(ctx, dir, control.RunLimits) }

// ofScale prints the provisioner's figures in large clusters.
func ofScale(ctx context.Context, dir string) error { return ofLarge(ctx, dir, control.RunScale) }

// ofMemory prints the memory of the provisioner of a large cluster.
func ofMemory(ctx context.Context, dir string) error { return ofLarge(ctx, dir, control.RunMemory) }

func ofLarge(ctx context.Context, dir string, take func(ctx context.Context, binary, dir string, log io.Writer) ([]string, error)) error {
	provisioner := filepath.Join(dir, "provisioner")
	if err := build(ctx, provisioner, "./cmd/provisioner"); err != nil {
		return err
	}
	lines, err := take(ctx, provisioner, dir, os.Stderr)
	fmt.Printf("\n%s\n", strings.Join(lines, "\n"))
	if err != nil {
		return fmt.Errorf("the figures of the control side: %w", err)
	}
	return nil
}

// ofNodes prints the figures of the driver and of the node daemon.
func ofNodes(ctx context.Context, dir string) error {
	driver := filepath.Join(dir, "flexlvm")
	if err := build(ctx, driver, "./cmd/flexlvm"); err != nil {
		return err
	}
	fmt.Println(figure.Header)
	began, err := figure.Compare("driver's `init` ÷ `/bin/true` (native)", 500, 2.5,
		figure.Side{Run: figure.Command(driver, "init")},
		figure.Side{Run: figure.Command("/bin/true")})
	if err != nil {
		return err
	}
	fmt.Println(began)
	plan, err := planTime(ctx)
	if err != nil {
		return err
	}
	if err := inNode(ctx, dir, map[string]string{"/flexlvm": "./cmd/flexlvm", "/inside": "./test/bench/inside", "/peak": "./test/bench/peak"}, nil); err != nil {
		return err
	}
	fmt.Println(plan)
	return nil
}

// planTime returns how long the node daemon's plan for 10,000 volumes takes, measured by a Go benchmark.
func planTime(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "Plan10000$", "./internal/eviction")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("time the plan: %w: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[0], "BenchmarkPlan10000") {
			return fmt.Sprintf("a plan for 10,000 volumes: %s (target ≤ 10 ms)", strings.Join(fields[4:6], " ")), nil
		}
	}
	return "", fmt.Errorf("time the plan: no figure in %q", out)
}

func build(ctx context.Context, file, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, out)
	}
	return nil
}

// inNode builds programs, and runs the program at /inside in a virtual node with these programs and other files.
func inNode(ctx context.Context, dir string, programs, others map[string]string, args ...string) error {
	files := map[string]string{}
	maps.Copy(files, others)
	for guest, pkg := range programs {
		files[guest] = filepath.Join(dir, guest)
		if err := build(ctx, files[guest], pkg); err != nil {
			return err
		}
	}
	res, err := vm.Run(ctx, vm.Config{
		Disks:   []vm.Disk{{Size: 64 << 30, Unsafe: true}, {Size: 8 << 30, Unsafe: true}}, // sparse
		Files:   files,
		Timeout: 40 * time.Minute,
	}, vm.Command{Args: append([]string{"/inside"}, args...), Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		return err
	}
	if res.ExitCode != 0 {
		return fmt.Errorf("the figures of the node: exit code %d", res.ExitCode)
	}
	return nil
}
