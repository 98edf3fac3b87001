package dataset

import (
	"fmt"
	"net"
	"path"
	"strings"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

var optionsOfPachyderm = []string{"repo", "branch", "project", "inputPath", "outputPath", "pachydermServiceAddress", "pachydermSecretName"}

// readPachyderm goes by Pachyderm's S3 gateway; VCK spoke gRPC, whose port is not
// the gateway's.
func (s *Source) readPachyderm(_ flexlvmv1.VolumeConfig, options map[string]string) error {
	for _, key := range []string{"repo", "branch", "inputPath", "outputPath"} {
		if options[key] == "" {
			return fmt.Errorf("%s has to be set in options", key)
		}
	}
	repo := options["repo"]
	if project := options["project"]; project != "" {
		repo = project + "/" + repo
	}
	input := options["inputPath"]
	s.URL = fmt.Sprintf("pachyderm://%s@%s/%s", repo, options["branch"], strings.TrimPrefix(input, "/"))
	s.Dir = strings.TrimPrefix(path.Clean("/"+options["outputPath"]), "/")
	s.Secret = options["pachydermSecretName"]
	if options["endpointURL"] == "" {
		endpoint, err := gateway(options["pachydermServiceAddress"])
		if err != nil {
			return err
		}
		s.Access = append(s.Access, "--endpoint="+endpoint)
	}
	return nil
}

// gateway is where Pachyderm's S3 gateway is, beside the address of its gRPC that
// VCK's manifests have.
func gateway(address string) (string, error) {
	const port = "30600"
	switch {
	case address == "":
		return "http://pachd:" + port, nil
	case strings.Contains(address, "://"):
		return address, nil
	case !strings.Contains(address, ":"):
		return "http://" + net.JoinHostPort(address, port), nil
	}
	host, given, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("pachydermServiceAddress %q: %w; write HOST:PORT of its S3 gateway, or endpointURL", address, err)
	}
	if given == "650" || given == "30650" || given == "1650" {
		given = port
	}
	return "http://" + net.JoinHostPort(host, given), nil
}
