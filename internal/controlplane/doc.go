// Package controlplane holds what both provisioners share: the leader lease, the options of the
// provisioning library, refusals, and the transform that drops unused fields from the caches.
package controlplane
