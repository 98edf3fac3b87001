package dataset

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Verb is what an Action does.
type Verb string

// The verbs.
const (
	Create          Verb = "create"           // Object
	Delete          Verb = "delete"           // Object, if it is the very one that was seen
	Annotate        Verb = "annotate"         // Object, with Annotations
	Grow            Verb = "grow"             // Object, a claim, to Size
	AddFinalizer    Verb = "add finalizer"    // to Object, a claim, until what is in it was uploaded
	RemoveFinalizer Verb = "remove finalizer" // from Object, a claim
	Label           Verb = "label"            // Node, with the dataset's label
	Unlabel         Verb = "unlabel"          // Node
)

// Action is one change to the cluster. Each may be the last before the controller is
// killed, and each may be repeated.
type Action struct {
	Verb        Verb
	Object      client.Object
	Annotations map[string]string
	Size        resource.Quantity
	Node        string
	Key         string // of the label
	// Reason and message of the event once it is done; may be empty.
	Reason, Message string
}
