package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// errRenamed is an lvm.ErrNoGroup: the volume group has another name than when the volume was created in it.
var errRenamed = fmt.Errorf("%w under its name", lvm.ErrNoGroup)

// explainGroup returns the error of a failed call with what to do about the volume group, if the spec names its UUID.
// A group of that UUID has existed, so it must not be created again; if it was renamed, the volume is intact, although
// LVM shows no group of that name, or another one without the volume.
func (e *Engine) explainGroup(ctx context.Context, spec volume.Spec, err error) error {
	missing := errors.Is(err, lvm.ErrNoGroup)
	if spec.GroupUUID == "" || !missing && !errors.Is(err, lvm.ErrNoVolume) && !errors.Is(err, ErrRefused) {
		return err
	}
	groups, failed := e.lvm.Groups(ctx)
	if failed != nil {
		return err
	}
	at := slices.IndexFunc(groups, func(g lvm.VolumeGroup) bool { return g.UUID == spec.GroupUUID })
	switch {
	case at >= 0 && groups[at].Name != spec.Group:
		return fmt.Errorf("%w: %s", errRenamed, volume.RenamedGroup(spec.GroupUUID, groups[at].Name, spec.Group))
	case at < 0 && missing:
		return fmt.Errorf("%w: %s with UUID %s; bring its disks back: `flexlvm doctor --group %s` shows whether LVM's devices file hides them", lvm.ErrNoGroup, spec.Group, spec.GroupUUID, spec.Group)
	}
	return err
}
