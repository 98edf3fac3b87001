// Package jobs holds the tests of volumes that pods of several nodes share: a real
// NFS server on one node, the shipped provisioner of NFS, and the recipe of a
// distributed job, on two virtual nodes.
package jobs
