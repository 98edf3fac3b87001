package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs are the folders of cmd/ that the image holds.
var programs = []string{"flexlvm", "provisioner", "gc", "csi", "installer", "fetch", "flexlvm-job"}

const module = "github.com/flexlvm/flexlvm"

// A source is the folder that holds the project.
type source string

// build compiles the programs, static and without anything of this machine's in them, into
// the folder to. The same source gives the same bytes wherever it lies, with the same Go.
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
	// gRPC's tracing, which nothing here uses, would have the linker keep each method of each
	// type: the CSI driver would take 3.3 MiB more on every node.
	tags = "grpcnotrace"
	// The node daemon speaks HTTP/1.1 with the API server: HTTP/2 would take 0.5 MiB more on
	// every node.
	daemonTags = tags + ",nethttpomithttp2"
)

// tagsOf returns what a program is built with.
func tagsOf(program string) string {
	if program == "gc" {
		return daemonTags
	}
	return tags
}

// buildWith compiles the programs that are built with these tags.
func (s source) buildWith(ctx context.Context, tags, version, arch, to string) error {
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-tags", tags, "-o", to + "/"}, linkFlags(version, arch)...)
	for _, p := range programs {
		if tagsOf(p) == tags {
			args = append(args, "./cmd/"+p)
		}
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = string(s)
	// Another choice of the builder's processor would change the bytes. The compiler may take
	// memory for time: it collects less often.
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0", "GOWORK=off",
		"GOAMD64=v1", "GOARM64=v8.0", "GOGC=400")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// linkFlags also gives the driver the entry point of its own that cmd/flexlvm/entry.go
// describes.
func linkFlags(version, arch string) []string {
	link := "-s -w -X " + module + "/internal/version.String=" + version
	return []string{"-ldflags", link, "-ldflags", module + "/cmd/flexlvm=" + link + entryFlag(arch)}
}

func entryFlag(arch string) string {
	if arch == "amd64" || arch == "arm64" {
		return " -E main.entry"
	}
	return ""
}
