package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/vm"
)

// programs are the names by which the Kubernetes binary selects the program to run.
var programs = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"}

// Setup installs missing packages on this machine. Start does so as well; call Setup before BuildImage.
func Setup(ctx context.Context, log io.Writer) error {
	root, err := vm.SourceDir()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "test/setup.sh"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("install missing packages: %w", err)
	}
	return nil
}

var kubernetesRequire = regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)`)

// EnvKubernetes is the environment variable that selects an older release of Kubernetes, such as 1.30. The release
// must have a module beside this package.
const EnvKubernetes = "FLEXLVM_KUBERNETES"

// kubernetesName returns the folder of the module, which is also the name of its programs in the cache.
func kubernetesName(root string) (string, error) {
	name := "kubernetes"
	if release := os.Getenv(EnvKubernetes); release != "" {
		name += "-" + release
	}
	if _, err := os.Stat(filepath.Join(root, "test/cluster", name, "go.mod")); err != nil {
		return "", fmt.Errorf("%s=%s: leave it out, or name a release of which there is a folder test/cluster/kubernetes-RELEASE: %w", EnvKubernetes, os.Getenv(EnvKubernetes), err)
	}
	return name, nil
}

// BuildKubernetes returns the folder with the cluster's programs. The first call builds them, which takes about six
// minutes on two cores.
func BuildKubernetes(ctx context.Context, log io.Writer) (string, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return "", err
	}
	name, err := kubernetesName(root)
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, "test/cluster", name)
	inputs := [][]byte{[]byte(runtime.Version() + runtime.GOARCH)}
	for _, file := range []string{"go.mod", "go.sum", "main.go", "kubectl/main.go"} {
		content, err := os.ReadFile(filepath.Join(module, file))
		if err != nil {
			return "", fmt.Errorf("read Kubernetes module: %w", err)
		}
		inputs = append(inputs, content)
	}
	version := kubernetesRequire.FindSubmatch(inputs[1])
	if version == nil {
		return "", fmt.Errorf("read Kubernetes version: %s/go.mod does not require k8s.io/kubernetes", module)
	}
	return built.Once(ctx, name, built.Key(inputs...), func(dir string) error {
		fmt.Fprintf(log, "building Kubernetes %s, once; this takes some minutes\n", version[1])
		const pkg = "k8s.io/component-base/version."
		flags := fmt.Sprintf("-s -w -X %[1]sgitVersion=%[2]s -X %[1]sgitMajor=%[3]s -X %[1]sgitMinor=%[4]s",
			pkg, version[1], version[2], version[3])
		for name, path := range map[string]string{"kubernetes": ".", "kubectl": "./kubectl"} {
			if err := built.Go(ctx, module, filepath.Join(dir, name), path, "-trimpath", "-ldflags", flags); err != nil {
				return err
			}
		}
		for _, name := range programs {
			if err := os.Symlink("kubernetes", filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// buildCtl builds the supervisor's program into dir. It is a program of its own because a test binary cannot be the
// supervisor.
func buildCtl(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(dir, "ctl")
	return binary, built.Program(ctx, binary, "./test/cluster/ctl")
}
