// Package nfsquota limits the directories of NFS volumes to their sizes, on the node that is the
// server: each directory for which that is requested has an XFS project of its own, with a limit.
// The export itself says what to do, so the package needs no API server.
package nfsquota
