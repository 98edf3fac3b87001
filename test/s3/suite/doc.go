// Package suite runs the loader, the real program, against a real S3 server and
// whatever goes wrong. Its tests have the build tag s3: `make test-s3`.
package suite
