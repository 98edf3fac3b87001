package dataset

import (
	"cmp"
	"fmt"
	"net"
	"path"
	"strings"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

var optionsOfPachyderm = []string{"endpointURL", "repo", "branch", "project", "inputPath", "outputPath", "pachydermServiceAddress", "pachydermSecretName", "filePath", "recursive"}

// readPachyderm uses Pachyderm's S3 gateway; VCK used gRPC, whose port is not the gateway's.
func (s *Source) readPachyderm(_ flexlvmv1.VolumeConfig, options map[string]string) error {
	// VCK's published manifest has an older option, filePath, for a file that is stored in the root.
	if file := options["filePath"]; file != "" && options["inputPath"] == "" {
		options["inputPath"], options["outputPath"] = file, cmp.Or(options["outputPath"], "/")
	}
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
	output := strings.TrimPrefix(path.Clean("/"+options["outputPath"]), "/")
	if single(input) && output != "" && !strings.HasSuffix(options["outputPath"], "/") {
		s.Flags = append(s.Flags, "--name="+output) // one file becomes outputPath itself
	} else {
		s.Dir = output
	}
	if s.Secret = options["pachydermSecretName"]; s.Secret == "" {
		s.Access = append(s.Access, "--anonymous")
	}
	if options["endpointURL"] == "" {
		endpoint, err := gateway(options["pachydermServiceAddress"])
		if err != nil {
			return err
		}
		s.Access = append(s.Access, "--endpoint="+endpoint)
		if s.Endpoint = protocol.EndpointOf(endpoint); s.Endpoint == "pachd.default.svc:30600" {
			s.Endpoint = "" // the default
		}
	}
	return nil
}

// single reports whether a path names one file, and not a directory or a pattern.
func single(path string) bool {
	return strings.TrimPrefix(path, "/") != "" && !strings.HasSuffix(path, "/") && !strings.ContainsAny(path, `*?[`)
}

// gateway returns the URL of Pachyderm's S3 gateway, given the address of its gRPC service, which VCK's
// manifests have.
func gateway(address string) (string, error) {
	const port = "30600"
	switch {
	case address == "":
		return "http://pachd.default.svc:" + port, nil
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
