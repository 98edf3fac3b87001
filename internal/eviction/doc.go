// Package eviction decides what the node daemon does with volumes that are no longer wanted, and which volumes
// it may create. Its decisions are pure functions of a View, without I/O or a clock. FutureTimes and Starts,
// which the caller keeps between rounds, are the only state. The decisions are:
//
//   - Judge: which volumes the API has positively given up.
//   - Plan: which volumes are evicted, in which order, and why.
//   - Steps: which steps are due in the eviction of datasets' replicas.
//   - ClonesToCreate, LocalVolumesToCreate, MayCreateAhead: which volumes to create now, before a pod mounts them.
//
// The decisions depend only on the View, not on the order of its lists. Nothing here infers from an absence
// that a volume is unwanted: only the state unreferenced means that, and only a released or deleted
// PersistentVolume leads to it.
package eviction
