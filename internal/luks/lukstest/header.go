// Package lukstest holds a LUKS2 header for tests, also for those that run without the source tree.
package lukstest

import (
	"bytes"
	_ "embed"
)

// UUID is that of the header.
const UUID = "5f0b2c1e-6a39-4c5f-9d3f-2f7b3f1f8a01"

//go:embed header
var header []byte

// Header returns what cryptsetup 2.6.1 wrote with the arguments of luks.Format, up to the first sector of the
// second copy.
func Header() []byte { return bytes.Clone(header) }
