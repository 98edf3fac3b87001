// Package peer copies a dataset from directories that already have it, over a separate port.
//
// The digest of an Index is what is trusted: the loader that loaded the dataset from its source reports
// it, and every loader that copies receives it. The index has the SHA-256 of each file. Data from a peer
// is accepted only if it matches, so a damaged or lying peer costs no more than another request.
//
// Peers authenticate by a shared token. It is never sent: both sides derive a key from it, with which
// they authenticate to each other in TLS.
package peer
