package fetch

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
)

// A server that gives no checksum of what it took is asked for all of it: the data may
// be deleted on the strength of "verified".
func TestPutReadsBackWhatHasNoChecksum(t *testing.T) {
	sent := []byte("what a user wrote")
	for name, got := range map[string]string{"whole": string(sent), "of the same length": "what a user wrotE"} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), sent, 0o600))
			b.fake.hook = func(w http.ResponseWriter, r *http.Request, key string) bool {
				if r.Method != http.MethodPut {
					return false
				}
				_, _ = io.Copy(io.Discard, r.Body)
				b.fake.set(key, fakeObject{data: []byte(got), etag: "of no kind"})
				w.Header().Set("ETag", `"of no kind"`)
				return true
			}
			target, err := ParseSource("s3://bucket/out/")
			require.NoError(t, err)
			quiet := logrus.New()
			quiet.SetOutput(io.Discard)
			_, err = Put(t.Context(), PutConfig{Dir: dir, Target: target, S3: S3{Endpoint: b.fake.URL, Attempts: 2, Stall: 5 * time.Second}, Memory: 64 * mib, Log: quiet}, NewProgress(ReadyAfter{}))
			if name == "whole" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, errChecksum)
			}
		})
	}
}
