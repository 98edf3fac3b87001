package controlplane

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Refusal says why a claim cannot be served as it and its class stand. Trying
// again changes nothing: somebody has to make the claim or the class anew. Each
// problem says what is wrong and what to do.
type Refusal struct {
	Problems []string
}

func (r *Refusal) Error() string { return strings.Join(r.Problems, "; ") }

// GRPCStatus makes the provisioning library take a Refusal for infeasible: it
// tells the user in an event and comes back to the claim minutes later, or when
// the class has been replaced, instead of every few seconds.
func (r *Refusal) GRPCStatus() *status.Status {
	return status.New(codes.InvalidArgument, r.Error())
}

// Problems collects what is wrong, so that a user reads it all in one event.
type Problems []string

// Add notes a problem.
func (p *Problems) Add(problem string) { *p = append(*p, problem) }

// Check notes an error, if it is one.
func (p *Problems) Check(err error) {
	if err != nil {
		p.Add(err.Error())
	}
}

// Refusal is nil where nothing is wrong.
func (p Problems) Refusal() error {
	if len(p) == 0 {
		return nil
	}
	return &Refusal{Problems: p}
}
