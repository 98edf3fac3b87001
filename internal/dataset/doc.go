// Package dataset carries out VolumeManagers: it brings datasets to the disks of
// nodes, keeps as many replicas there as were asked for, and lets consumers find
// them by one claim.
//
// Plan is a pure function of what is wanted and what there is; the controller remembers
// nothing. A replica is a claim of a flexlvm class and a Job that fills it; the scheduler
// places them. A deleted Job, an evicted replica, a lost node, an edit and a restart of
// the controller are all just "not yet as desired".
//
// That holds for copies, which can be loaded again from their source. What consumers may
// write to, S3-Dev and Aeon, is treated like a claim of theirs: it is never replaced or
// loaded over, and only its user can have it deleted: by Completed, after the verified
// upload if one was asked for, or by deleting the VolumeManager or the claim. In any
// doubt about an edit, a node or an unreadable spec, it stays as it is and the status
// says so.
package dataset
