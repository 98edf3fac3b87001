// Package suite runs the loader, the real program, against a real S3 server and
// whatever may befall it. Its tests have the build tag s3: `make test-s3`.
package suite
