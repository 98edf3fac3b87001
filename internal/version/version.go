// Package version holds the version of a release's binaries.
package version

// String is set when linking a release:
//
//	go build -ldflags "-X github.com/flexlvm/flexlvm/internal/version.String=v0.1.0"
var String = "unreleased"
