//go:build linux && (amd64 || arm64)

package main

// entry is where the kernel begins to execute this program, in place of Go's own entry
// point, to which it goes on: the Makefile has the linker say so (-E main.entry). It
// renames the environment variable GODEBUG.
//
// Kubelet hands its environment on, and takes what we print on either stream for one
// document. With GODEBUG=inittrace=1 Go's runtime prints before any Go code of ours
// runs, even package initialisation, so this cannot be written in Go.
func entry()

var _ = entry // it is called by nobody
