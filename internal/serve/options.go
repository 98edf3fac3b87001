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
	f.StringVar(&o.Address, "address", address, "address for /healthz, /readyz and /metrics; with --metrics-auth for /metrics alone")
	f.StringVar(&o.HealthAddress, "health-address", os.Getenv(healthVariable), "one more address for /healthz and /readyz, for the probes of kubelet, which has no token (default: the environment variable "+healthVariable+")")
	f.BoolVar(&o.Auth, "metrics-auth", false, "serve /metrics over TLS, and only to those whose token the API server knows and lets get /metrics; needs --health-address")
	f.StringVar(&o.CertFile, "metrics-tls-cert-file", "", "certificate for --metrics-auth, read again when it changes; empty: one that this process makes and signs itself")
	f.StringVar(&o.KeyFile, "metrics-tls-key-file", "", "key of --metrics-tls-cert-file")
}

// Check validates how the options depend on each other.
func (o Options) Check() error {
	switch {
	case o.Auth && o.HealthAddress == "":
		return errors.New("--metrics-auth needs --health-address: kubelet has no token to ask for health with")
	case (o.CertFile == "") != (o.KeyFile == ""):
		return errors.New("--metrics-tls-cert-file and --metrics-tls-key-file go together; give both or none")
	case o.CertFile != "" && !o.Auth:
		return errors.New("--metrics-tls-cert-file is for --metrics-auth; give that, too")
	}
	return nil
}
