// Package suite tests the real loader program with a real S3 server and injected faults. Its tests have the build
// tag s3: `make test-s3`.
package suite
