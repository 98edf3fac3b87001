package dataset

import (
	"fmt"
	"regexp"
	"strings"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

var optionsOfHub = []string{"sourceURL", "credentialsSecretName", "serviceAccountName", "anonymous", "endpointURL"}

var repository = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[^/@]+)?(/.*)?$`)

// readHub reads the URL of a repository. A mirror has the same data, so Load does not include which mirror is
// used.
func (s *Source) readHub(v flexlvmv1.VolumeConfig, options map[string]string) error {
	const form = "hf://ORG/NAME[@REVISION][/PATH] for a model, or hf://datasets/ORG/NAME[@REVISION][/PATH]"
	if err := s.readURL(v, options, form, "hf"); err != nil {
		return err
	}
	_, rest, _ := strings.Cut(s.URL, "://")
	for _, kind := range []string{"models/", "datasets/"} {
		if after, is := strings.CutPrefix(rest, kind); is {
			rest = after
			break
		}
	}
	if !repository.MatchString(rest) {
		return fmt.Errorf("sourceURL %q has to be %s", s.URL, form)
	}
	s.readMirror(options)
	if options["anonymous"] == "true" {
		s.Access, s.Secret = append(s.Access, "--anonymous"), ""
	}
	return nil
}

// readMirror reads an endpointURL that does not change the content.
func (s *Source) readMirror(options map[string]string) {
	if options["endpointURL"] != "" {
		s.Access = append(s.Access, "--endpoint="+options["endpointURL"])
		delete(options, "endpointURL")
	}
}
