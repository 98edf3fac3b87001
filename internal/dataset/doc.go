// Package dataset carries out VolumeManagers: it brings datasets to the disks of
// nodes, keeps as many replicas there as were asked for, and lets consumers find
// them by one claim.
//
// What is done follows from what is wanted and what there is, and from nothing that
// is remembered: Plan is a pure function of both. A replica is a claim of a flexlvm
// class and a Job that fills it; the scheduler places them. A deleted Job, an
// evicted replica, a lost node, an edit and a new start of the controller are all
// just "not yet as desired".
package dataset
