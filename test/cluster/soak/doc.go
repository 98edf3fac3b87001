// Package soak holds the test that lets many claims live and die on a cluster of
// two nodes whose disks are too small for them, while the node daemon and the
// kubelets are killed, and settles the accounts at the end. `make soak` runs it,
// with as many claims as SOAK_CLAIMS says; it is no part of `make test` yet.
package soak
