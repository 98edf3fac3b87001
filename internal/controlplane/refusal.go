package controlplane

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Refusal explains why a claim cannot be served with its current spec and class. Retrying does not
// help: somebody has to recreate the claim or the class. Each problem names the fault and the remedy.
type Refusal struct {
	Problems []string
}

func (r *Refusal) Error() string { return strings.Join(r.Problems, "; ") }

// GRPCStatus makes the provisioning library treat a Refusal as infeasible: the library reports it in an
// event and retries the claim minutes later, or when the class has been replaced, instead of after the
// usual backoff.
func (r *Refusal) GRPCStatus() *status.Status {
	return status.New(codes.InvalidArgument, r.Error())
}

// Problems collects the problems of a claim, so that a user reads all of them in one event.
type Problems []string

// Add adds a problem.
func (p *Problems) Add(problem string) { *p = append(*p, problem) }

// Check adds err unless it is nil.
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
