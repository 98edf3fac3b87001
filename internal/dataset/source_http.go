package dataset

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

var optionsOfHTTP = []string{"sourceURL", "credentialsSecretName", "serviceAccountName"}

// readHTTP reads the URL of a list of files.
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

// readURL reads sourceURL, which has one of these schemes, and its Secret. form describes a valid URL.
func (s *Source) readURL(v flexlvmv1.VolumeConfig, options map[string]string, form string, schemes ...string) error {
	s.URL, s.Secret = v.SourceURL, options["credentialsSecretName"]
	if s.URL == "" {
		s.URL = options["sourceURL"]
	}
	if s.URL == "" {
		return fmt.Errorf("sourceURL has to be set in options")
	}
	scheme, rest, _ := strings.Cut(s.URL, "://")
	switch {
	case rest == "" || !slices.Contains(schemes, scheme):
	case strings.HasPrefix(scheme, "http"):
		return checkSecrets(s.URL)
	default:
		return nil
	}
	return fmt.Errorf("sourceURL %q has to be %s", s.URL, form)
}

// checkAddresses rejects addresses with a password before the host, which everybody could read: in URLs of HTTP
// and in endpoints anything before an @, as tokens stand there, and elsewhere USER:PASSWORD. Its errors do not
// contain the address.
func checkAddresses(v flexlvmv1.VolumeConfig, options map[string]string) error {
	for _, address := range [][2]string{
		{"sourceURL", v.SourceURL}, {"sourceURL", options["sourceURL"]}, {"endpointURL", options["endpointURL"]}, {"outputURL", options["outputURL"]},
		{"pachydermServiceAddress", options["pachydermServiceAddress"]}, {"EndpointURL", options["EndpointURL"]}, // the latter is VCK's
	} {
		scheme, rest, found := strings.Cut(address[1], "://")
		if !found {
			scheme, rest = "", address[1]
		}
		host, _, _ := strings.Cut(rest, "/")
		endpoint := strings.EqualFold(address[0], "endpointURL") || address[0] == "pachydermServiceAddress"
		if _, port, found := strings.Cut(host, ":"); endpoint && found && strings.Trim(port, "0123456789") != "" {
			host = rest // this is no port, and a password may contain a slash
		}
		web := strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https") || endpoint
		if user, _, found := strings.Cut(host, "@"); found && (web || strings.Contains(user, ":")) {
			return fmt.Errorf("%s holds a password, which everybody could read; name a Secret in %s", address[0], secretOption(v.SourceType))
		}
	}
	return nil
}

// secretOption returns the option that names the Secret of a source type.
func secretOption(t flexlvmv1.SourceType) string {
	for _, option := range []string{"credentialsSecretName", "pachydermSecretName"} {
		if slices.Contains(sources[t].options, option) {
			return option
		}
	}
	return "awsCredentialsSecretName"
}

// secretWords are parts of the names of URL parameters that grant access, such as X-Amz-Signature, sig and
// access_token.
var secretWords = []string{"sig", "token", "key", "secret", "passw", "credential"}

// checkSecrets rejects a sourceURL with a signature, which everybody could read. Its errors do not contain the
// URL.
func checkSecrets(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return errors.New("sourceURL is not a URL; write the characters % / ? # @ in names as %25, %2F, %3F, %23 and %40")
	}
	for name := range u.Query() {
		for _, word := range secretWords {
			if strings.Contains(strings.ToLower(name), word) {
				return fmt.Errorf("sourceURL has the parameter %q, which everybody could read; name a Secret in credentialsSecretName", name)
			}
		}
	}
	return nil
}
