package dataset

import (
	"fmt"
	"strconv"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// boolean parses an option as VCK did: 1, t, True and so on; missing is false.
func boolean(options map[string]string, key string) (bool, error) {
	if options[key] == "" {
		return false, nil
	}
	value, err := strconv.ParseBool(options[key])
	if err != nil {
		return false, fmt.Errorf("error while parsing %s option: %w; write \"true\" or \"false\"", key, err)
	}
	return value, nil
}

// readResync reads the option by which VCK uploaded changes.
func (s *Source) readResync(replicas flexlvmv1.ReplicaCount, options map[string]string) error {
	text := options["resync"]
	on, err := boolean(options, "resync")
	if err != nil {
		return fmt.Errorf("%w; to fetch what changes in the source write refresh: %q", err, text)
	}
	switch {
	case !on:
		return nil
	case s.Type != flexlvmv1.SourceS3 && s.Type != flexlvmv1.SourceS3Dev:
		return fmt.Errorf("resync %q with sourceType %s: only what came from S3 can be uploaded; to fetch what changes in the source write refresh", text, s.Type)
	case replicas > 1:
		return fmt.Errorf("replicas cannot be > 1 when resync is set (%d), because only one replica can be uploaded; set replicas to 1", replicas)
	case options["anonymous"] != "" && options["anonymous"] != "false":
		return fmt.Errorf("resync %q with anonymous %q: an upload needs credentials; name awsCredentialsSecretName or serviceAccountName", text, options["anonymous"])
	case options["versionID"] != "":
		return fmt.Errorf("resync %q with versionID: what is uploaded becomes the newest version; leave one of them out", text)
	}
	s.Mirror = true
	return nil
}

// readRefresh reads when the source is checked for changes.
func (s *Source) readRefresh(text, zone string) (err error) {
	if s.Refresh, err = parseSchedule(text, zone); err != nil {
		return err
	}
	if s.Refresh != nil && s.Writable() {
		return fmt.Errorf("refresh %s: it would bring back what consumers of this volume change; leave it out", text)
	}
	return nil
}
