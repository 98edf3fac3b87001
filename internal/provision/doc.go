// Package provision turns claims of flexlvm classes into PersistentVolumes on the nodes that the
// scheduler chose. It creates nothing on a node; the node daemon does that, or the driver at the first
// mount, from the options of the PersistentVolume alone.
package provision
