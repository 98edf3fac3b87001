// Package vm is the lower level of the test bed: virtual machines with a real device mapper, LVM and XFS, for
// machines whose own kernel has none.
//
// # Commands in a throw-away node
//
// [Run] boots a guest, runs one command in it and removes everything:
//
//	result, err := vm.Run(ctx, vm.Config{
//		Disks: []vm.Disk{{Size: 2 << 30}},
//		Files: map[string]string{"/bin/flexlvm": "bin/flexlvm"},
//	}, vm.Command{Args: []string{"flexlvm", "doctor"}})
//
// [Start] leaves the guest running, so that [Machine.Exec] can run any number of commands in it, in sequence or in
// parallel. [Machine.PowerCut] and [Machine.Boot] are the two halves of a power failure.
//
// Disks are /dev/vda, /dev/vdb … in the order of Config.Disks, followed by the guest's own read-only root disk. The
// root file system is Debian with the packages in image/packages, under a layer in memory: a guest may write
// anywhere, and its changes are lost at the next boot.
//
// # What runs a guest
//
// A [Backend]: qemu with KVM if a guest really boots under it, else User-Mode Linux, else qemu with an emulated
// processor, which works everywhere and is slow. FLEXLVM_NODES=kvm|uml|tcg forces one; arm64 selects an emulated
// arm64 processor. User-Mode Linux is a kernel that runs as a process of this machine. Its source, configuration
// and patches are in uml/; it is built once and kept in the cache. A guest has the same root file system, disks,
// network cards and names on every backend; on User-Mode Linux it has one processor and a kernel without modules.
//
// # Longer-lived nodes
//
// Config.Root names a file that keeps the changes to the root file system across boots. Only the test bed's small
// process 1 runs in such a node until Machine.Exec starts a command.
//
// To use another init, start the [Program] of a [Hardware]. The initrd of [Images] then finds the drive with the
// serial number [RootSerial], copies the files below /files in an archive appended to the initrd onto it, and obeys
// these kernel arguments:
//
//	flexlvm.root=rw      mount the root disk itself, not a layer in memory on it
//	flexlvm.init=/path   make this program process 1, with /dev, /proc and /sys mounted
//	flexlvm.udev=1       start udevd (not with flexlvm.init)
//
// # Communication
//
// Process 1 connects to the host over TCP (see package wire), through a tap device in the machine's own network
// namespace.
//
// # Cleanup
//
// Nothing remains: a machine is killed when the process that started it ends, for any reason, and the next start
// removes leftover files from the cache's run folder.
//
// # A power cut
//
// PowerCut kills the machine. Data that the guest had not yet written to its disk is lost; data that it had written
// but not flushed is not, because the host still holds it. This finds a missing fsync, but not a missing flush,
// which needs dm-log-writes in the guest.
package vm
