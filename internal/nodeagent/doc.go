// Package nodeagent is the node daemon (cmd/gc). It releases and removes volumes, makes room when a pool fills up,
// creates copies, snapshots and declared volumes and groups, discovers and cleans disks, limits IO, trims, enforces
// the sizes of directories in NFS exports, and reports the state of the node.
//
// Package eviction makes the decisions. This package observes the node and the API server, and carries the
// decisions out.
//
// Daemon.Run starts these goroutines. They share only what has a lock of its own or is atomic: queues, backoffs, sets
// of UUIDs, dedupe, history, releasedClaims and failedEvictions, and the caches of the watches.
//
//   - The rounds (round) observe, decide, queue, publish and release. Only they use the fields of Daemon that are
//     declared as theirs, and the outcomes in declarations.
//   - The watches (watches, declarations, discoverer) fill their caches. Their handlers trigger rounds and scans, offer
//     new PersistentVolumes to the aheadCreator, and in the discoverer stop cleanings and record departures.
//   - Six queues (serialQueue) do one job at a time: removals, wipes and directoryRemovals; createQueue and
//     slowCreateQueue; trimmer. Each round replaces the jobs that wait.
//   - The aheadCreator creates the volumes of new claims. It reads the last round's view and plan, and whether
//     the createQueue is busy.
//   - The discoverer scans in one goroutine, supervises scans and cleanings in another, and runs each cleaning in one of
//     its own. discoverer.mu guards their state, except discoverer.seen, which belongs to the scans. A round holds
//     discoverer.scanning while it creates a volume group.
//   - The limiter (package iolimit) limits IO. Each round passes it the limits that should apply.
//   - examine runs the checks of `flexlvm doctor`. It publishes its result in examined, and reads namedGroups.
//   - enforceSizes enforces the sizes of directories. It uses none of the rounds' state.
//   - watchWakeups, awaitUnmounts and watchSnapshotStores only trigger rounds: after a program on the node has woken the
//     daemon, when a volume that was given up may have been unmounted, and when a snapshot's store fills up.
//
// Run awaits all of them except scans and enforceSizes, which may hang with a disk.
package nodeagent
