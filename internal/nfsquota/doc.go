// Package nfsquota limits the directories of NFS volumes to their sizes, on the node that is the
// server: each directory for which that is requested has its own XFS project with a limit. The marks in
// the export determine what to do, so the package needs no API server.
package nfsquota
