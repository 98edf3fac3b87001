// Package version holds the release that a binary was built from.
package version

// String is set when a release is linked:
//
//	go build -ldflags "-X github.com/flexlvm/flexlvm/internal/version.String=v0.1.0"
var String = "unreleased"
