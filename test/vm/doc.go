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
// # Longer-lived nodes
//
// Config.Root makes a disk image of the caller the root file system, writable
// and kept over boots, usually a qcow2 file on top of Images.NodeDisk (see
// [CreateOverlay]); Config.NICs adds network cards. Nothing but our small
// process 1 runs in such a node until it is told to by Machine.Exec.
//
// Who wants an init of his own starts the machine with [Qemu]. The initrd of
// [Images] then looks for the drive with the serial number [RootSerial], copies
// what an archive appended to the initrd holds under /files into it, and obeys
// these kernel arguments:
//
//	flexlvm.root=rw      mount the root disk itself, not a layer in memory on it
//	flexlvm.init=/path   make this program process 1, with /dev, /proc and /sys mounted
//	flexlvm.udev=1       start udevd (not with flexlvm.init)
//
// # What stays behind
//
// Nothing: qemu dies with the process that started it, however that ends, and
// what it left in the cache's run folder is removed by the next start.
//
// # A power cut
//
// PowerCut kills qemu. What the guest had not yet given to its disk is lost; what
// it had given but not flushed is not, as the host still holds it. A missing
// fsync is found this way, a missing flush is not: for that there is
// dm-log-writes in the guest.
package vm
