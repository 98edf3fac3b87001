// Package persistentvolume recognises, strictly parses and builds flexlvm's PersistentVolumes. Only
// this package, the two drivers (internal/flexvolume, internal/csidoor) and the names that they share
// (internal/pv) know how volumes are reached.
package persistentvolume
