package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs are the folders of cmd/ whose programs are in the image.
var programs = []string{"flexlvm", "provisioner", "gc", "csi", "installer", "fetch", "flexlvm-job"}

const module = "github.com/flexlvm/flexlvm"

// A source is the folder of the project.
type source string

// build compiles static programs into the folder to, independently of this machine. With the same version of Go,
// the same source gives the same bytes wherever it is.
func (s source) build(ctx context.Context, version, arch, to string) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return fmt.Errorf("build programs: %w", err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("build programs: %w", err)
	}
	for _, with := range []string{tags, daemonTags} {
		if err := s.buildWith(ctx, with, version, arch, to); err != nil {
			return fmt.Errorf("build programs for %s: %w", arch, err)
		}
	}
	return nil
}

const (
	// gRPC's tracing, which flexlvm does not use, would make the linker keep every method of every type: the CSI
	// driver would need 3.3 MiB more on every node.
	tags = "grpcnotrace"
	// The node daemon uses HTTP/1.1 with the API server: HTTP/2 would need 0.5 MiB more on every node.
	daemonTags = tags + ",nethttpomithttp2"
)

// tagsOf returns the build tags of a program.
func tagsOf(program string) string {
	if program == "gc" {
		return daemonTags
	}
	return tags
}

// buildWith compiles the programs that use these build tags.
func (s source) buildWith(ctx context.Context, tags, version, arch, to string) error {
	args := append([]string{"-tags", tags, "-o", to + "/"}, linkFlags(version, arch)...)
	for _, p := range programs {
		if tagsOf(p) == tags {
			args = append(args, "./cmd/"+p)
		}
	}
	return s.goBuild(ctx, platform{"linux", arch}, args...)
}

// goBuild runs go build with settings that make its output independent of this machine.
func (s source) goBuild(ctx context.Context, p platform, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-buildvcs=false"}, args...)...)
	cmd.Dir = string(s)
	// GOAMD64 and GOARM64 are fixed, because the builder's own settings would change the bytes. A higher GOGC
	// trades memory for time.
	cmd.Env = append(os.Environ(), "GOOS="+p.system, "GOARCH="+p.arch, "CGO_ENABLED=0", "GOWORK=off",
		"GOAMD64=v1", "GOARM64=v8.0", "GOGC=400")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// linkVersion returns the linker flags that set the release and leave out debugging information.
func linkVersion(version string) string {
	return "-s -w -X " + module + "/internal/version.String=" + version
}

// linkFlags also sets the driver's own entry point, which cmd/flexlvm/entry.go describes.
func linkFlags(version, arch string) []string {
	link := linkVersion(version)
	return []string{"-ldflags", link, "-ldflags", module + "/cmd/flexlvm=" + link + entryFlag(arch)}
}

func entryFlag(arch string) string {
	if arch == "amd64" || arch == "arm64" {
		return " -E main.entry"
	}
	return ""
}
