package dataset

import (
	"fmt"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// sharedFrom names a volume of another VolumeManager.
type sharedFrom struct{ namespace, name, id string }

var optionsOfShared = []string{"namespace", "name", "volume"}

func (s *Source) readShared(_ flexlvmv1.VolumeConfig, options map[string]string) error {
	s.Shared = &sharedFrom{options["namespace"], options["name"], options["volume"]}
	if s.Shared.namespace == "" || s.Shared.name == "" || s.Shared.id == "" {
		return fmt.Errorf("namespace %q, name %q and volume %q: all have to be set in options; they name the volume of the VolumeManager that offers it", s.Shared.namespace, s.Shared.name, s.Shared.id)
	}
	return nil
}

// checkSharing rejects sharedWith for a volume that has no copies to read.
func (s Source) checkSharing(v flexlvmv1.VolumeConfig) error {
	if len(v.SharedWith) == 0 || s.Copies() && !s.Writable() {
		return nil
	}
	with := "sourceType " + string(v.SourceType)
	if s.Mirror && s.Type == flexlvmv1.SourceS3 {
		with = "resync"
	}
	return fmt.Errorf("sharedWith with %s: only replicas that consumers read can be offered to other namespaces; leave it out", with)
}
