package volume

// State is a stage in the life of a volume; it is kept in an LV tag.
type State string

const (
	// Creating: the LV exists, its file system may not. The only state in which
	// mkfs may run.
	Creating State = "creating"
	// Ready: formatted, and it may hold data.
	Ready State = "ready"
	// Unreferenced: positively known to be no longer wanted; may be evicted.
	Unreferenced State = "unreferenced"
	// Retained: its PV is gone, its policy was Retain; only a person removes it.
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
	// Snapshot volumes hold what another held at one moment. They are never mounted, only
	// copied.
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
