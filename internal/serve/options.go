package serve

import (
	"errors"
	"os"
)

// healthVariable is the environment variable by which the manifest sets the address of kubelet's probes: an
// argument would be lost if somebody sets other arguments of the container.
const healthVariable = "HEALTH_ADDRESS"

// Options are the operator's settings.
type Options struct {
	Address       string // of everything; with Auth of /metrics only
	HealthAddress string // of /healthz and /readyz; may be empty
	Auth          bool
	CertFile      string
	KeyFile       string
}

// flags is a set of command-line flags.
type flags interface {
	StringVar(p *string, name, value, usage string)
	BoolVar(p *bool, name string, value bool, usage string)
}

// Flags adds the options to f; address is the default of --address.
func (o *Options) Flags(f flags, address string) {
	f.StringVar(&o.Address, "address", address, "address for /healthz, /readyz and /metrics; with --metrics-auth only for /metrics")
	f.StringVar(&o.HealthAddress, "health-address", os.Getenv(healthVariable), "additional address for /healthz and /readyz, for the probes of kubelet, which has no token (default: the environment variable "+healthVariable+")")
	f.BoolVar(&o.Auth, "metrics-auth", false, "serve /metrics over TLS, and only to clients whose token the API server allows to get /metrics; needs --health-address")
	f.StringVar(&o.CertFile, "metrics-tls-cert-file", "", "file with the certificate for --metrics-auth, reloaded when it changes; empty: a self-signed certificate")
	f.StringVar(&o.KeyFile, "metrics-tls-key-file", "", "file with the key of --metrics-tls-cert-file")
}

// Check validates how the options depend on each other.
func (o Options) Check() error {
	switch {
	case o.Auth && o.HealthAddress == "":
		return errors.New("--metrics-auth needs --health-address, because kubelet has no token for its probes")
	case (o.CertFile == "") != (o.KeyFile == ""):
		return errors.New("--metrics-tls-cert-file and --metrics-tls-key-file go together; give both or none")
	case o.CertFile != "" && !o.Auth:
		return errors.New("--metrics-tls-cert-file needs --metrics-auth; set that, too")
	}
	return nil
}
