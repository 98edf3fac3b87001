//go:build linux && (amd64 || arm64)

package main

// entry is the entry point of this program (the Makefile links with -E main.entry). It renames the environment
// variable GODEBUG and jumps to Go's own entry point.
//
// The driver inherits kubelet's environment, and kubelet parses stdout and stderr as one document. With
// GODEBUG=inittrace=1, Go's runtime prints before any of flexlvm's Go code runs, including package
// initialization, so this cannot be written in Go.
func entry()

var _ = entry // only the kernel calls it
