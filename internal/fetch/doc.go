// Package fetch fills a directory with the objects of a source: an S3 bucket,
// a Pachyderm repository through its S3 gateway, or another directory.
//
// What it promises:
//
//   - A file stands under its name only when it is complete and was verified
//     against the strongest checksum that the source gives.
//   - A file stands in the manifest only when it and its name are on disk.
//   - The process may be killed at any instant. The next run trusts nothing but
//     the manifest, and bytes on disk whose CRC is the one that was noted when
//     they came.
//   - Nothing outside the directory is read, made or changed, whatever the
//     objects are called.
//
// The way of an object: Store.List → place (is its key a safe path?) → decide
// (is it here already?) → a worker receives and verifies it into a temporary
// file → the committer syncs the file system once for many files, renames
// them, syncs again, and appends them to the manifest.
package fetch
