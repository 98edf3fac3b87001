package dataset

import (
	"fmt"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

var optionsOfPVC = []string{"claimName", "path"}

// sourceDir is where a loader mounts a claim that it copies.
const sourceDir = protocol.SourceDir

// readPVC reads the name of the claim to copy. The loader mounts it read-only.
func (s *Source) readPVC(_ flexlvmv1.VolumeConfig, options map[string]string) error {
	s.Claim = options["claimName"]
	if len(validation.IsDNS1123Subdomain(s.Claim)) > 0 {
		return fmt.Errorf("claimName %q has to be the name of a PersistentVolumeClaim in this namespace", s.Claim)
	}
	s.URL = "file://" + strings.TrimSuffix(path.Join(sourceDir, path.Clean("/"+options["path"])), "/") + "/"
	s.Endpoint = "claim/" + s.Claim // another claim has other data
	return nil
}
