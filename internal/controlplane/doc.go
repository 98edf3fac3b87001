// Package controlplane holds the code that the provisioners and the controllers in their processes
// (CSI's controller service, datasets, growth, the ledger, lost nodes) share: the leader lease, the
// options of the provisioning library, refusals, and the transform that drops unused fields from
// caches.
package controlplane
