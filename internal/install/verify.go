package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/utils/exec"
)

// Verify returns an error unless the driver is a copy of binary and answers `init`, kubelet's first call. It
// changes nothing. programs runs programs from Dir, and may kill them.
func (p Place) Verify(ctx context.Context, binary string, programs exec.Interface) error {
	source, err := os.Open(binary)
	if err != nil {
		return fmt.Errorf("verify the driver: %w", err)
	}
	defer func() { _ = source.Close() }()
	same, err := p.holds(source)
	if err != nil {
		return err
	}
	if !same {
		return fmt.Errorf("verify the driver: %s is missing or is not this release; see what the installer logs; if another installation has replaced it, %s", p.Driver(), again)
	}
	out, err := programs.CommandContext(ctx, filepath.Base(p.Driver()), "init").Output()
	if err != nil {
		return fmt.Errorf("call %s init: %w; is its file system mounted noexec?", p.Driver(), err)
	}
	if !strings.Contains(string(out), `"status":"Success"`) {
		return fmt.Errorf("call %s init: it answers %q instead of success", p.Driver(), strings.TrimSpace(string(out)))
	}
	return nil
}
