package dataset

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Verb is what an Action does.
type Verb string

// Verbs, with the fields of the Action that each uses.
const (
	Create          Verb = "create"           // Object
	Delete          Verb = "delete"           // Object, if its UID and resourceVersion are unchanged since it was observed
	Annotate        Verb = "annotate"         // Object, with Annotations
	Grow            Verb = "grow"             // Object, a claim, to Size
	AddFinalizer    Verb = "add finalizer"    // to Object, a claim, until its content is uploaded
	RemoveFinalizer Verb = "remove finalizer" // from Object, a claim
	Label           Verb = "label"            // Node, with the dataset's label
	Unlabel         Verb = "unlabel"          // Node
)

// Action is one change to the cluster. The controller may be killed after any action, and every action may be
// repeated.
type Action struct {
	Verb        Verb
	Object      client.Object
	Annotations map[string]string
	Size        resource.Quantity
	Node        string
	Key         string // of the label
	// Reason and message of the event that is sent after the action; may be empty.
	Reason, Message string
}
