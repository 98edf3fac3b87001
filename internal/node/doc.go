// Package node is the engine of one node: it creates, mounts, grows and removes volumes, independently of the
// driver (FlexVolume or CSI) that a call comes through.
//
// Every method may be killed at any instant and converges when it is called again. A volume's LVM tags are
// its description. The records under the state directory save asking LVM, and keep a volume that was handed
// out from being formatted or replaced by an empty one (see record.go).
package node
