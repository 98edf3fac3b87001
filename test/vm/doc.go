// Package vm is the lower level of the test bed: virtual machines with a real
// device mapper, LVM and XFS, for machines whose own kernel has none.
//
// # Commands in a throw-away node
//
// [Run] boots a guest, runs one command in it and takes everything away:
//
//	result, err := vm.Run(ctx, vm.Config{
//		Disks: []vm.Disk{{Size: 2 << 30}},
//		Files: map[string]string{"/bin/flexlvm": "bin/flexlvm"},
//	}, vm.Command{Args: []string{"flexlvm", "doctor"}})
//
// [Start] leaves the guest running, so that any number of commands can be run in
// it by [Machine.Exec], one after the other or at once; [Machine.PowerCut] and
// [Machine.Boot] are the two halves of a power failure.
//
// Disks are /dev/vda, /dev/vdb … in the order of Config.Disks; the guest's own
// read-only root disk comes after them. The root file system is Debian with all
// that is named in image/packages, under a layer in memory: a guest may write
// anywhere, and the next boot has forgotten it.
//
// # What runs a guest
//
// A [Backend]: qemu with KVM where a guest really boots under it, else User-Mode Linux,
// else qemu with an emulated processor, which works everywhere and is slow.
// FLEXLVM_NODES=kvm|uml|tcg forces one. User-Mode Linux is a kernel that is a process
// of this machine; its source, its configuration and its patches are in uml/, it is
// built once and kept in the cache. A guest has the same root file system, disks,
// network cards and names on all of them; on User-Mode Linux it has one processor
// and a kernel without modules.
//
// # Longer-lived nodes
//
// Config.Root names a file that keeps the changes to the root file system over boots.
// Nothing but our small process 1 runs in such a node until it is told to by
// Machine.Exec.
//
// Who wants an init of his own starts the [Program] of a [Hardware]. The initrd of
// [Images] then looks for the drive with the serial number [RootSerial], copies
// what an archive appended to the initrd holds under /files into it, and obeys
// these kernel arguments:
//
//	flexlvm.root=rw      mount the root disk itself, not a layer in memory on it
//	flexlvm.init=/path   make this program process 1, with /dev, /proc and /sys mounted
//	flexlvm.udev=1       start udevd (not with flexlvm.init)
//
// # The way in
//
// Process 1 calls the host over TCP (see the package wire), over a tap device in a
// network namespace that the machine has for itself.
//
// # What stays behind
//
// Nothing: a machine dies with the process that started it, however that ends, and
// what it left in the cache's run folder is removed by the next start.
//
// # A power cut
//
// PowerCut kills the machine. What the guest had not yet given to its disk is lost; what
// it had given but not flushed is not, as the host still holds it. A missing
// fsync is found this way, a missing flush is not: for that there is
// dm-log-writes in the guest.
package vm
