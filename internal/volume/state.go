package volume

// State is a stage of a volume's lifecycle, kept in an LV tag.
type State string

const (
	// Creating: the LV exists, its file system may not. mkfs may run only in this state.
	Creating State = "creating"
	// Ready: formatted, and it may hold data.
	Ready State = "ready"
	// Unreferenced: known for certain to be no longer wanted; may be evicted.
	Unreferenced State = "unreferenced"
	// Retained: its PV is gone and its policy was Retain; only a person removes it.
	Retained State = "retained"
	// Doomed: its removal has committed.
	Doomed State = "doomed"
)

// ParseState checks a state. The error is a *FieldError.
func ParseState(field, s string) (State, error) {
	switch st := State(s); st {
	case Creating, Ready, Unreferenced, Retained, Doomed:
		return st, nil
	}
	return "", invalid(field, s, "is not a state; it is one of creating, ready, unreferenced, retained, doomed")
}

// Kind is what a volume is for.
type Kind string

const (
	// Claim volumes belong to a PersistentVolumeClaim.
	Claim Kind = "claim"
	// Dataset volumes are replicas of a dataset.
	Dataset Kind = "dataset"
	// Snapshot volumes hold the content that another volume had at one moment. They are never
	// mounted, only copied.
	Snapshot Kind = "snapshot"
)

// ParseKind checks a kind; empty means Claim. The error is a *FieldError.
func ParseKind(field, s string) (Kind, error) {
	switch k := Kind(s); k {
	case "":
		return Claim, nil
	case Claim, Dataset, Snapshot:
		return k, nil
	}
	return "", invalid(field, s, "is not a kind; it is claim, dataset or snapshot")
}
