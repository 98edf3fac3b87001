// Package suite runs the real loader program against a real S3 server and injected
// faults. Its tests have the build tag s3: `make test-s3`.
package suite
