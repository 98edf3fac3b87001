package dataset

import (
	"fmt"
	"regexp"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

var optionsOfClouds = []string{"sourceURL", "credentialsSecretName", "serviceAccountName", "anonymous", "endpointURL"}

var (
	gcsURL   = regexp.MustCompile(`^gs://[a-z0-9][a-z0-9._-]+[a-z0-9](/.*)?$`)
	azureURL = regexp.MustCompile(`^azblob://[a-z0-9]{3,24}/[a-z0-9$-]+(/.*)?$`)
)

// readGCS reads the options of a Google Cloud Storage bucket.
func (s *Source) readGCS(v flexlvmv1.VolumeConfig, options map[string]string) error {
	return s.readCloud(v, options, "gs://BUCKET/KEY, or gs://BUCKET/PREFIX/ for all below it", "gs", gcsURL)
}

// readAzure reads the options of an Azure Blob Storage container.
func (s *Source) readAzure(v flexlvmv1.VolumeConfig, options map[string]string) error {
	return s.readCloud(v, options, "azblob://ACCOUNT/CONTAINER/KEY, or azblob://ACCOUNT/CONTAINER/PREFIX/ for all below it", "azblob", azureURL)
}

// readCloud reads a URL and its credentials: a Secret, the cloud identity of a service account, or none.
func (s *Source) readCloud(v flexlvmv1.VolumeConfig, options map[string]string, form, scheme string, valid *regexp.Regexp) error {
	if err := s.readURL(v, options, form, scheme); err != nil {
		return err
	}
	switch {
	case !valid.MatchString(s.URL):
		return fmt.Errorf("sourceURL %q has to be %s", s.URL, form)
	case options["anonymous"] == "true":
		s.Access, s.Secret = append(s.Access, "--anonymous"), ""
	case s.Secret == "" && s.ServiceAccount == "":
		return fmt.Errorf("credentialsSecretName has to be set in options, or serviceAccountName, or anonymous: \"true\"")
	}
	return nil
}
