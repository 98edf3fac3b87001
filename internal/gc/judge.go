package gc

import "github.com/flexlvm/flexlvm/internal/volume"

// An Action is what is to be done about a Claim.
type Action string

const (
	// ActionRelease: move the volume to Verdict.To, then let the PersistentVolume
	// go: delete it unless that has happened already (preconditions UID and
	// resourceVersion), and drop our finalizer.
	ActionRelease Action = "release"
	// ActionReport: do nothing and tell a person.
	ActionReport Action = "report"
)

// A Verdict is what the API has positively said about a Claim.
type Verdict struct {
	Claim  Claim
	Action Action
	To     volume.State // Unreferenced or Retained; with ActionRelease only
	Why    string       // in words, for events and logs
}

// Judge says what is to be done about each claim, in order of their
// PersistentVolumes' names. Claims that are as they should be have no Verdict.
func Judge(view View) []Verdict { return nil }
