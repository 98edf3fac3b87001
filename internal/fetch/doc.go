// Package fetch fills a directory with the objects of a source: a bucket, a model, an
// artifact, files on HTTP servers, or another directory. kinds lists all of them.
//
// Guarantees:
//
//   - A file has its name only once it is complete and verified against the strongest
//     checksum that the source provides.
//   - A file is in the manifest only once it and its name are on disk.
//   - The process may be killed at any instant. The next run trusts only the manifest,
//     and bytes on disk whose CRC is the one recorded when they arrived.
//   - Nothing outside the directory is read, created or changed, whatever the names of
//     the objects.
//
// The path of an object: Store.List → place (is its key a safe path?) → makePlan (is
// it here already?) → a worker receives it into a temporary file and verifies it → the
// committer syncs the file system once for many files, renames them, syncs again, and
// appends them to the manifest.
package fetch
