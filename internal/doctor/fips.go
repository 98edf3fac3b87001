package doctor

import (
	"context"
	"errors"
	"os"
	"strings"
)

// checkFIPS checks whether the kernel is in FIPS mode. In that mode, a cryptsetup that was built for it, as on RHEL,
// refuses argon2id, with which flexlvm derives the keys of encrypted volumes.
func (d *Doctor) checkFIPS(context.Context) []Finding {
	const check = "FIPS mode"
	enabled, err := os.ReadFile(d.path("proc/sys/crypto/fips_enabled"))
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without that mode has no such file
		return warn(check, err.Error(), "mount /proc")
	}
	if strings.TrimSpace(string(enabled)) != "1" {
		return ok(check, "is off")
	}
	return warn(check, "is on, and cryptsetup may then refuse argon2id, which encrypted volumes need: they could be neither created nor mounted",
		"if you use encrypted volumes, keep them on other nodes (allowedTopologies of their class), or encrypt the disks of the volume group instead (docs/encryption.md)")
}
