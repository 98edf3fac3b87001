// Package gc is the node daemon: it takes back the volumes that nobody wants any
// more, makes room when a pool runs full, and reports what it sees.
//
// What is to be done is decided by pure functions of one View, which can be
// tested without a machine and asked by hand:
//
//   - ClaimOf reads a PersistentVolume, strictly.
//   - Judge says which volumes the API has positively given up.
//   - Plan says which volumes go, in which order, and why.
//   - Steps says what is due for the replicas of datasets that are to go.
//
// They take the time from the View, keep no state, and give the same answer for
// the same View in whatever order its lists come. Nothing here infers from an
// absence that a volume is unwanted: only its state unreferenced says so, and
// only a released or deleted PersistentVolume leads there.
package gc
