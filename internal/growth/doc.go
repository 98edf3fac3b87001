// Package growth resizes claims. For each node, it serves requests in the order in which they were
// made, once the ledger has promised the room, and reports on claims why they wait or are refused.
// Kubernetes itself would enlarge the PersistentVolume of a FlexVolume to any size; the policy
// growth.flexlvm.io permits only flexlvm to do that.
//
// The decisions are pure functions (claim.go, decide.go); controller.go carries them out. All important
// state is in the API, so a process may be killed at any step, and its successor continues. Only the
// reservation after a growth was taken back (ledger.Keep) is lost.
package growth
