// Package dataset reconciles VolumeManagers: it loads datasets onto the disks of nodes, keeps the requested
// number of replicas there, and gives consumers one claim to read each dataset by.
//
// Plan is a pure function of the desired and the observed state; the controller keeps no state of its own. A
// replica is a claim of a flexlvm class and a Job that fills it; the scheduler places them. A deleted Job, an
// evicted replica, a lost node, an edit and a restart of the controller are all just "not yet as desired".
//
// That holds for copies, which can be loaded again from their source. A volume that consumers may write to,
// S3-Dev or Aeon, is treated like a claim of the user: it is never replaced or loaded over, and only the user
// can have it deleted: by Completed, after the verified upload if one was asked for, or by deleting the
// VolumeManager or the claim. In any doubt about an edit, a node or an unreadable spec, it stays as it is and
// the status says so.
package dataset
