package volumegroup

import (
	"fmt"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A State is the state of a declaration on this node.
type State string

// The states of a declared group; api/v1 has the same words.
const (
	Made    State = "Made"
	Waiting State = "Waiting"
	Refused State = "Refused"
)

// An Outcome is the outcome of one declaration, for messages.
type Outcome struct {
	Name    string // of the VolumeGroup
	Group   volume.Group
	State   State
	Message string
	Members []Disk
	Refused []Refusal
	Changed bool // a disk was touched, or a pool created
}

// NewOutcome returns the outcome of a decision of which nothing was carried out yet.
func NewOutcome(d Decision) Outcome {
	out := Outcome{Name: d.Declaration.Name, Group: d.Declaration.Group, Members: d.Members, Refused: d.Refused}
	switch {
	case d.Problem != "":
		out.State, out.Message = Refused, d.Problem
	case d.GroupUUID != "":
		out.State, out.Message = Made, fmt.Sprintf("volume group %s consists of %d disks", out.Group, len(d.Members))
	case d.WaitReason != "":
		out.State, out.Message = Waiting, d.WaitReason
	case d.Matched():
		out.State, out.Message = Refused, fmt.Sprintf("none of the matching disks can be used: %d refused", len(d.Refused))
	default:
		out.State, out.Message = Waiting, "no disk of this node matches"
	}
	return out
}
