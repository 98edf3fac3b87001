package dataset

import flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"

// The Secret and the other options for the way to outputURL.
var optionsOfAeon = []string{"awsCredentialsSecretName", "endpointURL", "region", "addressStyle", "serviceAccountName", "caConfigMap"}

func (s *Source) readAeon(_ flexlvmv1.VolumeConfig, options map[string]string) error {
	s.Access = flagsOf(options, accessFlags)
	return nil
}
