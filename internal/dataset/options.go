package dataset

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// maxParallel is the loader's own limit.
const maxParallel = 1024

// checkOutput rejects an outputURL that could not be uploaded to, or not with all content. An upload sends one
// replica, to the server and with the credentials of the source.
func (s Source) checkOutput(options map[string]string) error {
	switch {
	case s.OutputURL == "":
		return nil
	case !strings.HasPrefix(s.OutputURL, "s3://"):
		return fmt.Errorf("outputURL %q has to begin with s3://", s.OutputURL)
	case s.Type == flexlvmv1.SourcePachyderm:
		return fmt.Errorf("outputURL %q with sourceType Pachyderm: the loader knows the address and the Secret of Pachyderm alone, so it could not be uploaded; leave outputURL out, and upload from a job of your own", s.OutputURL)
	case options["anonymous"] == "true":
		return fmt.Errorf("outputURL %q with anonymous \"true\": an upload needs credentials; name awsCredentialsSecretName or serviceAccountName in place of anonymous, or leave outputURL out", s.OutputURL)
	case options["distributionStrategy"] != "" && !s.Mirror:
		return fmt.Errorf("outputURL %q with distributionStrategy %s: each replica holds other files, and only those of one would be uploaded; leave outputURL out, and upload from jobs of your own, or leave distributionStrategy out", s.OutputURL, options["distributionStrategy"])
	}
	return nil
}

// checkAll rejects options that exclude replicas: All, and an invalid sharedWith.
func (s Source) checkAll(v flexlvmv1.VolumeConfig, options map[string]string) error {
	if err := s.checkSharing(v); err != nil {
		return err
	}
	if v.Replicas != flexlvmv1.AllNodes {
		return nil
	}
	for _, key := range []string{"distributionStrategy", "resync"} {
		if value := options[key]; value != "" && !isFalse(value) {
			return fmt.Errorf("replicas All with %s %s: that needs a number of replicas, which nodes that come and go change; leave it out, or write a number", key, value)
		}
	}
	if s.Writable() || !s.Copies() {
		return fmt.Errorf("replicas All with sourceType %s: there is one at most; leave replicas out", s.Type)
	}
	return nil
}

func isFalse(text string) bool {
	on, err := strconv.ParseBool(text)
	return err == nil && !on
}

// readStream reads whether the volume is ready before all of it is loaded. A volume that consumers write to is not: the
// loader could replace what they write. The option is then ignored and not refused, because a volume whose spec cannot be
// read is not released.
func (s *Source) readStream(options map[string]string) error {
	on, err := boolean(options, "stream")
	if err != nil || !on {
		return err
	}
	if s.Writable() {
		s.StreamIgnored = true
		return nil
	}
	s.Stream, s.StreamAfter = true, cmp.Or(options["streamAfter"], "1")
	return nil
}

// readDisplacing reads whether the dataset may displace others, and may be displaced.
func (s *Source) readDisplacing(options map[string]string) (err error) {
	if s.Displaceable, err = boolean(options, "displaceable"); err != nil {
		return err
	}
	if s.Displaceable && s.Writable() {
		return fmt.Errorf("displaceable %s: what consumers write to a volume of sourceType %s is nowhere else; leave it out", options["displaceable"], s.Type)
	}
	switch options["displaces"] {
	case "", "None":
	case "Idle":
		s.Displaces = true
	default:
		return fmt.Errorf("displaces %q has to be Idle, which displaces datasets that no pod reads and that say displaceable, or None", options["displaces"])
	}
	return nil
}

// checkBounds checks options that are passed to the loader unchanged, by the loader's rules: on a value that it
// cannot parse, the loader ends without a result.
func checkBounds(options map[string]string) error {
	if text := options["bandwidth"]; !isSize(text) {
		return fmt.Errorf("bandwidth %q has to be bytes a second, such as 100Mi", text)
	}
	if text := options["streamAfter"]; !isSize(text) {
		return fmt.Errorf("streamAfter %q has to be a count of files, such as 10, or bytes with a unit, such as 100Mi", text)
	}
	switch text := options["checksum"]; text {
	case "", "required", "ifPresent", "none":
	default:
		return fmt.Errorf("checksum %q has to be required, ifPresent or none", text)
	}
	text := options["parallel"]
	if text == "" {
		return nil
	}
	if n, err := strconv.ParseInt(text, 0, 64); err != nil || n < 0 || n > maxParallel {
		return fmt.Errorf("parallel %q has to be how many requests may be open at once, from 1 to %d, or 0 to have it chosen", text, maxParallel)
	}
	return nil
}

// isSize reports whether the loader accepts a text as bytes or as a count; empty is valid.
func isSize(text string) bool {
	if text == "" {
		return true
	}
	q, err := resource.ParseQuantity(text)
	return err == nil && q.Sign() >= 0
}
