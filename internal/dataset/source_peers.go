package dataset

import (
	"fmt"
	"strconv"
)

// readPeers reads the options for copying replicas from each other.
func (s *Source) readPeers(options map[string]string) error {
	s.Peers = options["peersSecretName"]
	text := options["sourceLoaders"]
	switch {
	case s.Peers == "" && text != "":
		return fmt.Errorf("sourceLoaders %q without peersSecretName: all loaders ask the source; name a Secret with a token, by which replicas are copied from each other", text)
	case s.Peers == "":
		return nil
	case s.Writable():
		return fmt.Errorf("peersSecretName %q with sourceType %s: there is one replica at most; leave it out", s.Peers, s.Type)
	}
	for _, key := range []string{"distributionStrategy", "refresh"} {
		if value := options[key]; value != "" && !isFalse(value) {
			return fmt.Errorf("peersSecretName %q with %s %s: replicas that are copied from each other hold the same; leave one of them out", s.Peers, key, value)
		}
	}
	s.SourceLoaders = 1
	if text == "" {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return fmt.Errorf("sourceLoaders %q has to be how many loaders ask the source at once, 1 or more", text)
	}
	s.SourceLoaders = n
	return nil
}
