// Package eviction decides what the node daemon does with volumes that are no longer wanted, and
// which volumes it may make. Its decisions are pure functions of a View, without I/O or a clock. FutureTimes
// and Starts, which the caller keeps between rounds, are the only state. The decisions are:
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
