package dataset

import (
	"fmt"
	"strings"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

var optionsOfS3 = []string{"endpointURL", "awsCredentialsSecretName", "sourceURL", "region", "addressStyle", "anonymous", "serviceAccountName", "versionID", "EndpointURL"}

func (s *Source) readS3(v flexlvmv1.VolumeConfig, options map[string]string) error {
	s.URL = v.SourceURL
	if s.URL == "" {
		s.URL = options["sourceURL"]
	}
	// VCK's controller recorded its default in this option, and never read it.
	if noted := options["EndpointURL"]; noted != "" && protocol.EndpointOf(noted) != "" {
		return fmt.Errorf("EndpointURL %q was a note of VCK's controller and never used; write endpointURL", noted)
	}
	switch {
	case s.URL == "":
		return fmt.Errorf("sourceURL has to be set in options")
	case !strings.HasPrefix(s.URL, "s3://") || len(s.URL) == len("s3://"):
		return fmt.Errorf("sourceURL %q has to be s3://BUCKET/KEY, or s3://BUCKET/PREFIX/ for all below it", s.URL)
	case options["anonymous"] == "true":
		s.Access = append(s.Access, "--anonymous")
		s.Secret = ""
	case s.Secret == "" && s.ServiceAccount == "":
		return fmt.Errorf("awsCredentialsSecretName key has to be set in options, or serviceAccountName, or anonymous: \"true\"")
	}
	return nil
}
