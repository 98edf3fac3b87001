package doctor

import (
	"context"
	"fmt"
	"strings"
)

// setting returns the value of an LVM setting, such as devices/scan_lvs.
func (d *Doctor) setting(ctx context.Context, path string) (string, error) {
	out, err := d.host.Tools.CommandContext(ctx, "lvmconfig", "--type", "full", path).Output()
	if err != nil {
		return "", err
	}
	_, name, _ := strings.Cut(path, "/")
	text := strings.TrimSpace(string(out))
	value, is := strings.CutPrefix(text, name+"=")
	if !is {
		return "", fmt.Errorf("LVM's %s reads %q", name, text)
	}
	return value, nil
}
