// Package persistentvolume recognises, strictly parses and builds our PersistentVolumes.
// Only it, the two drivers (internal/flexvolume, internal/csidoor) and the names that they
// share (internal/pv) know how volumes are reached.
package persistentvolume
