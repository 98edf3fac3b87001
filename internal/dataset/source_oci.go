package dataset

import (
	"fmt"
	"regexp"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

var optionsOfOCI = []string{"sourceURL", "credentialsSecretName", "serviceAccountName", "anonymous", "endpointURL"}

var artifact = regexp.MustCompile(`^oci://[A-Za-z0-9.-]+(:[0-9]+)?/[a-z0-9._/-]+(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[0-9a-f]{64})?$`)

// readOCI reads the reference of an artifact or an image. A mirror has the same content, by its digest.
func (s *Source) readOCI(v flexlvmv1.VolumeConfig, options map[string]string) error {
	const form = "oci://REGISTRY/REPOSITORY[:TAG|@DIGEST]"
	if err := s.readURL(v, options, form, "oci"); err != nil {
		return err
	}
	if !artifact.MatchString(s.URL) {
		return fmt.Errorf("sourceURL %q has to be %s", s.URL, form)
	}
	s.readMirror(options)
	if options["anonymous"] == "true" {
		s.Access, s.Secret = append(s.Access, "--anonymous"), ""
	}
	return nil
}
