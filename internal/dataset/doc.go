// Package dataset carries out VolumeManagers: it brings datasets to the disks of
// nodes, keeps as many replicas there as were asked for, and lets consumers find
// them by one claim.
//
// What is done follows from what is wanted and what there is, and from nothing that
// is remembered: Plan is a pure function of both. A replica is a claim of a flexlvm
// class and a Job that fills it; the scheduler places them. A deleted Job, an
// evicted replica, a lost node, an edit and a new start of the controller are all
// just "not yet as desired".
//
// That holds for copies, which can be had again from their source. What consumers may
// write to, S3-Dev and Aeon, is treated like a claim of theirs: it is never replaced,
// never loaded over, and never deleted but by its user's own word: Completed, after the
// verified upload where one was asked for, or the deletion of the VolumeManager or of
// the claim. Where there is any doubt, an edit, a node, a spec that cannot be read, it
// stays as it is and the status says so.
package dataset
