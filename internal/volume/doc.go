// Package volume is the domain of flexlvm: names, sizes, specs, states and
// tags. It does no I/O and imports nothing of the project.
//
// This package is a contract: LVM tags outlive every release, and both what the
// provisioner charges to a pool and what the driver then cuts from it follow from
// Spec.DeviceSize.
package volume
