// Package storetest generates content for tests.
package storetest

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"sync"
)

// large caches results of at least a MiB: with the race detector, generating them again for each test
// takes as long as fetching them.
var large sync.Map

// RandomBytes returns the same bytes for the same seed. Callers must not change them.
func RandomBytes(seed uint64, n int64) []byte {
	const least = 1 << 20
	of := [2]int64{int64(seed), n}
	if made, there := large.Load(of); there {
		return made.([]byte)
	}
	b := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	_, _ = rand.NewChaCha8(key).Read(b)
	if n >= least {
		large.Store(of, b)
	}
	return b
}

// CompositeOf returns the ETag of an upload in parts of these sizes, of which the last is repeated. It
// does not use the code under test.
func CompositeOf(data []byte, parts ...int64) string {
	var sums []byte
	n := 0
	for at := int64(0); at < int64(len(data)); n++ {
		end := min(at+parts[min(n, len(parts)-1)], int64(len(data)))
		sum := md5.Sum(data[at:end])
		sums, at = append(sums, sum[:]...), end
	}
	whole := md5.Sum(sums)
	return fmt.Sprintf("%s-%d", hex.EncodeToString(whole[:]), n)
}
