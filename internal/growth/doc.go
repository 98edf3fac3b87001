// Package growth resizes claims. For each node it serves requests in the order in which they were
// made, once the ledger has promised the room, and tells claims that wait or are refused why.
// Kubernetes itself would enlarge the PersistentVolume of a FlexVolume to any size; the policy
// growth.flexlvm.io lets only flexlvm do that.
//
// The decisions are pure functions (claim.go, decide.go); controller.go carries them out. All state
// that matters is in the API, so a process may be killed at any step, and its successor continues. It does not know
// of room that is kept after a growth was taken back (ledger.Keep).
package growth
