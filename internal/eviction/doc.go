// Package eviction decides what the node daemon does with volumes that nobody wants any
// more. It is pure: functions of one View, without I/O, clock or state, which can be
// tested without a machine and asked by hand:
//
//   - Judge says which volumes the API has positively given up.
//   - Plan says which volumes go, in which order, and why.
//   - Steps says what is due for the replicas of datasets that are to go.
//   - Copies says which volumes are to be made now as a copy of another.
//
// They give the same answer for the same View in whatever order its lists come.
// Nothing here infers from an absence that a volume is unwanted: only its state
// unreferenced says so, and only a released or deleted PersistentVolume leads there.
package eviction
