// Package volume is the domain of flexlvm: names, sizes, specs, states and
// tags. It does no I/O and imports nothing of the project.
//
// What stands here is a contract: LVM tags outlive every release, and the
// arithmetic of DeviceSize is what the provisioner charges to a pool and what
// the driver then cuts from it.
package volume
