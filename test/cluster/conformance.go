package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/vm"
)

// A Conformance is a build of Kubernetes' own tests of CSI drivers, the external storage suite.
type Conformance struct {
	tests, ginkgo, agnhost string
	images                 string
}

// testRegistry is the nominal registry of the suite's images, which are built here.
const testRegistry = "flexlvm.test"

// BuildConformance returns the suite, and builds it at the first call. It shares nearly all of its packages with
// the cluster's programs: with the same versions and flags, they are in Go's build cache.
func BuildConformance(ctx context.Context, log io.Writer) (*Conformance, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return nil, err
	}
	module := filepath.Join(root, "test/cluster/conformance")
	inputs := [][]byte{[]byte(runtime.Version() + runtime.GOARCH)}
	for _, file := range []string{"go.mod", "go.sum", "main.go", "agnhost/main.go"} {
		content, err := os.ReadFile(filepath.Join(module, file))
		if err != nil {
			return nil, fmt.Errorf("read conformance module: %w", err)
		}
		inputs = append(inputs, content)
	}
	dir, err := built.Once(ctx, "conformance", built.Key(inputs...), func(dir string) error {
		fmt.Fprintln(log, "building the external storage suite, once; this takes some minutes")
		for name, pkg := range map[string]string{"agnhost": "./agnhost", "e2e.test": ".", "ginkgo": "github.com/onsi/ginkgo/v2/ginkgo"} {
			if err := built.Go(ctx, module, filepath.Join(dir, name), pkg, "-trimpath", "-ldflags", "-s -w"); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	c := &Conformance{tests: filepath.Join(dir, "e2e.test"), ginkgo: filepath.Join(dir, "ginkgo"), agnhost: filepath.Join(dir, "agnhost")}
	c.images, err = c.testImages(ctx)
	return c, err
}

// Images returns an archive for LoadImage with the images of the suite.
func (c *Conformance) Images() string { return c.images }

// testImages builds the images of the suite's pods, from busybox and Kubernetes' agnhost. They use this machine's
// dd, because busybox's lacks oflag=nocache, with which the suite writes to raw block volumes, and this machine's
// shell, because busybox's always runs its own dd, regardless of PATH. The image names are those that this version
// of the suite uses.
func (c *Conformance) testImages(ctx context.Context) (string, error) {
	wanted, err := exec.CommandContext(ctx, c.tests, "images").Output()
	if err != nil {
		return "", fmt.Errorf("ask the tests for their images: %w", err)
	}
	agnhost, err := os.ReadFile(c.agnhost)
	if err != nil {
		return "", fmt.Errorf("make images of the tests: %w", err)
	}
	binary, applets, err := busybox(ctx)
	if err != nil {
		return "", err
	}
	programs := []string{"dd", "sh"}
	files, err := programFiles(ctx, programs...)
	if err != nil {
		return "", err
	}
	applets = slices.DeleteFunc(applets, func(applet string) bool { return slices.Contains(programs, applet) })
	key := [][]byte{packing, wanted, agnhost, binary, []byte(strings.Join(applets, " "))}
	for _, file := range files {
		key = append(key, []byte(file.header.Name), file.content)
	}
	dir, err := built.Once(ctx, "conformance-images", built.Key(key...), func(dir string) error {
		layer, err := busyboxLayer(binary, applets, append(files, tarFile{
			header: tar.Header{Name: "agnhost", Typeflag: tar.TypeReg, Mode: 0o755}, content: agnhost})...)
		if err != nil {
			return err
		}
		var images []image
		for _, name := range strings.Fields(string(wanted)) {
			img := image{name: testRegistry + "/" + name, command: []string{"sh"}}
			if strings.HasPrefix(name, "agnhost:") {
				img.entrypoint, img.command = []string{"/agnhost"}, []string{"pause"}
			}
			images = append(images, img)
		}
		archive, err := imageArchive(layer, images...)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "images.tar"), archive, 0o644)
	})
	return filepath.Join(dir, "images.tar"), err
}

// A Spec is a test of the suite and its result.
type Spec struct {
	Driver  string // the file that describes the driver to the suite
	Name    string // without the prefix that all have in common
	State   string // passed, failed, skipped, pending, …
	Message string // why it was skipped, or failed
	Took    time.Duration
}

// Selection selects the tests to run.
type Selection struct {
	Driver string   // the file that describes the driver to the suite
	Labels string   // ginkgo's label filter
	Focus  []string // regular expressions, one of which must match the name; all tests if empty
	AtOnce int      // how many run in parallel
	Within time.Duration
}

// Conform runs tests of the suite on the cluster and returns the result of each selected test. Their output is
// written to log.
func (c *Cluster) Conform(ctx context.Context, suite *Conformance, s Selection, log io.Writer) ([]Spec, error) {
	dir, err := os.MkdirTemp("", "flexlvm-conformance-")
	if err != nil {
		return nil, fmt.Errorf("run conformance tests: %w", err)
	}
	defer os.RemoveAll(dir)
	registries, report := filepath.Join(dir, "registries.yaml"), filepath.Join(dir, "report.json")
	if err := os.WriteFile(registries, []byte("promoterE2eRegistry: "+testRegistry+"\n"), 0o644); err != nil {
		return nil, fmt.Errorf("run conformance tests: %w", err)
	}
	args := []string{suite.ginkgo, "run", fmt.Sprintf("--procs=%d", max(1, s.AtOnce)), "--no-color", "--json-report=report.json", "--output-dir=" + dir,
		"--label-filter=" + s.Labels, "--timeout=" + s.Within.String(), "--keep-going", "--silence-skips"}
	for _, focus := range s.Focus {
		args = append(args, "--focus="+focus)
	}
	cmd := c.Command(ctx, append(args, suite.tests, "--", "--storage.testdriver="+s.Driver, "--kubeconfig="+c.AdminKubeconfig(),
		"--kubectl-path="+filepath.Join(c.dir, "kubectl"), "--provider=local")...)
	cmd.Env = append(os.Environ(), "KUBE_TEST_REPO_LIST="+registries,
		"KUBE_SSH_USER=root", "KUBE_SSH_KEY_PATH="+filepath.Join(c.dir, sshKey))
	cmd.Stdout, cmd.Stderr = log, log
	// ginkgo starts processes of its own. After an interrupt, they clean up.
	cmd.SysProcAttr.Setpgid = true
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	ran := cmd.Run()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("run conformance tests: %w", err)
	}
	content, err := os.ReadFile(report)
	if err != nil {
		return nil, fmt.Errorf("run conformance tests: %w", errors.Join(ran, err))
	}
	specs, err := parseReport(content)
	for i := range specs {
		specs[i].Driver = s.Driver
	}
	return specs, err
}

// parseReport parses ginkgo's report.
func parseReport(content []byte) ([]Spec, error) {
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			RunTime                 time.Duration
			Failure                 struct{ Message string }
		}
	}
	if err := json.NewDecoder(bytes.NewReader(content)).Decode(&suites); err != nil {
		return nil, fmt.Errorf("read report of conformance tests: %w", err)
	}
	var specs []Spec
	for _, suite := range suites {
		for _, r := range suite.SpecReports {
			name := strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " ")
			switch {
			case r.LeafNodeType != "It" && r.State == "passed":
				continue // setup and cleanup
			case r.State == "skipped" && r.Failure.Message == "":
				continue // not selected
			}
			specs = append(specs, Spec{Name: name, State: r.State, Message: r.Failure.Message, Took: r.RunTime})
		}
	}
	if len(specs) == 0 {
		return nil, errors.New("read report of conformance tests: no test was selected")
	}
	return specs, nil
}
