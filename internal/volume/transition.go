package volume

import "slices"

// An Authority is who may move a volume from one state to another.
type Authority string

const (
	// ByEngine: the engine knows, because it has created or is removing the volume itself.
	ByEngine Authority = "engine"
	// ByRelease: the API reports that the PersistentVolume is permanently gone.
	ByRelease Authority = "release"
	// ByPerson: a person ran a command, on the node or through the API.
	ByPerson Authority = "person"
)

// A Transition is a change of state that a volume may make.
type Transition struct {
	From, To State
	By       Authority
	// Requires describes what else must hold. The engine checks it; the text is documentation.
	Requires string
}

const (
	closed = "its device is not open on the node"
	whole  = "it is not an unfinished copy"
)

// transitions lists every transition. docs/design.md shows them, and the engine calls MayMove
// before each.
var transitions = [...]Transition{
	{Creating, Ready, ByEngine, "its file system and quota are whole, or its device is zeroed, and this node has its record, or it is a finished copy or snapshot"},
	{Creating, Unreferenced, ByRelease, "the reclaim policy is Delete"},
	{Creating, Retained, ByRelease, "the reclaim policy is Retain"},
	{Ready, Unreferenced, ByRelease, "the reclaim policy is Delete"},
	{Ready, Retained, ByRelease, "the reclaim policy is Retain"},
	{Unreferenced, Retained, ByRelease, "the reclaim policy is Retain by now"},
	{Unreferenced, Doomed, ByEngine, closed + ", and no volume is a snapshot of it"},
	{Creating, Unreferenced, ByPerson, closed},
	{Ready, Unreferenced, ByPerson, closed},
	{Retained, Unreferenced, ByPerson, closed},
	{Ready, Retained, ByPerson, whole},
	{Unreferenced, Retained, ByPerson, whole},
	{Unreferenced, Ready, ByPerson, whole},
	{Retained, Ready, ByPerson, whole},
}

// Transitions returns all changes of state that a volume may make.
func Transitions() []Transition { return slices.Clone(transitions[:]) }

// MayMove reports whether a volume may move from one state to another on this authority.
// A doomed volume stays doomed. Formatting is not a move: only a volume that is Creating
// may be formatted.
func MayMove(from, to State, by Authority) bool {
	return slices.ContainsFunc(transitions[:], func(t Transition) bool { return t.From == from && t.To == to && t.By == by })
}
