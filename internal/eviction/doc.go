// Package eviction decides what the node daemon does with volumes that are no longer
// wanted, and which it may make, since new ones need the room. It is pure: functions of one View, without I/O, clock or state, which can be
// tested without a machine:
//
//   - Judge: which volumes the API has positively given up.
//   - Plan: which volumes are evicted, in which order, and why.
//   - Steps: what is due for the replicas of datasets that are to be evicted.
//   - Copies, Declared, MayMakeAhead: which volumes to make now, before a pod mounts them.
//
// They give the same answer for the same View in whatever order its lists come.
// Nothing here infers from an absence that a volume is unwanted: only its state
// unreferenced says so, and only a released or deleted PersistentVolume leads there.
package eviction
