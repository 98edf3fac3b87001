package dataset

import (
	"fmt"
	"net/url"
	"strings"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

var optionsOfHTTP = []string{"sourceURL", "credentialsSecretName", "serviceAccountName"}

// readHTTP reads the address of a list of files.
func (s *Source) readHTTP(v flexlvmv1.VolumeConfig, options map[string]string) error {
	if err := s.readURL(v, options, "https://HOST/LIST, where each line of LIST names a url, sha256 and size", "https", "http"); err != nil {
		return err
	}
	u, err := url.Parse(s.URL)
	if err != nil || u.Host == "" || u.Path == "" || strings.HasSuffix(u.Path, "/") {
		return fmt.Errorf("sourceURL %q has to be https://HOST/LIST, where each line of LIST names a url, sha256 and size", s.URL)
	}
	return nil
}

// readURL reads sourceURL, which is of one of these schemes, and the Secret for it. form says
// how it is written.
func (s *Source) readURL(v flexlvmv1.VolumeConfig, options map[string]string, form string, schemes ...string) error {
	s.URL, s.Secret = v.SourceURL, options["credentialsSecretName"]
	if s.URL == "" {
		s.URL = options["sourceURL"]
	}
	if s.URL == "" {
		return fmt.Errorf("sourceURL has to be set in options")
	}
	scheme, rest, _ := strings.Cut(s.URL, "://")
	for _, one := range schemes {
		if scheme == one && rest != "" {
			return s.checkUser(rest)
		}
	}
	return fmt.Errorf("sourceURL %q has to be %s", s.URL, form)
}

// checkUser refuses a password in a URL, which everybody could read.
func (s *Source) checkUser(rest string) error {
	host, _, _ := strings.Cut(rest, "/")
	if user, _, found := strings.Cut(host, "@"); found && strings.Contains(user, ":") {
		return fmt.Errorf("sourceURL holds a password; name a Secret in credentialsSecretName")
	}
	return nil
}
