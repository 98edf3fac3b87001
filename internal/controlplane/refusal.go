package controlplane

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Refusal says why a claim cannot be served as it and its class are. Retrying does not
// help: somebody has to recreate the claim or the class. Each problem says what is wrong
// and what to do.
type Refusal struct {
	Problems []string
}

func (r *Refusal) Error() string { return strings.Join(r.Problems, "; ") }

// GRPCStatus makes the provisioning library treat a Refusal as infeasible: it reports it
// in an event and retries the claim minutes later, or when the class has been replaced,
// instead of after the usual backoff.
func (r *Refusal) GRPCStatus() *status.Status {
	return status.New(codes.InvalidArgument, r.Error())
}

// Problems collects what is wrong, so that a user reads it all in one event.
type Problems []string

// Add notes a problem.
func (p *Problems) Add(problem string) { *p = append(*p, problem) }

// Check notes err unless it is nil.
func (p *Problems) Check(err error) {
	if err != nil {
		p.Add(err.Error())
	}
}

// Refusal returns the problems as a *Refusal, or nil if there are none.
func (p Problems) Refusal() error {
	if len(p) == 0 {
		return nil
	}
	return &Refusal{Problems: p}
}
