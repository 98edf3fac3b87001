package dirstore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who can write to a claim does not have a loader copy its credentials.
func TestNoLinkLeadsOutOfAClaim(t *testing.T) {
	top := t.TempDir()
	claim, secret := filepath.Join(top, "source"), filepath.Join(top, "credentials")
	require.NoError(t, os.MkdirAll(filepath.Join(claim, "v1", "deep"), 0o755))
	require.NoError(t, os.Mkdir(secret, 0o755))
	for name, to := range map[string]string{"current": "v1", "out": secret, "up": "../credentials", "v1/top": ".."} {
		require.NoError(t, os.Symlink(to, filepath.Join(claim, name)))
	}
	for dir, good := range map[string]bool{
		"/": true, "/v1/": true, "/v1/deep/": true, "/current/": true, "/current/deep": true, "/v1/top/": true,
		"/out/": false, "/up": false, "/current/top/up/": false,
	} {
		root, err := openIn(claim, claim+dir)
		require.Equal(t, good, err == nil, "%s: %v", dir, err)
		if err == nil {
			require.NoError(t, root.Close())
		}
	}
	// Elsewhere links are followed to the directory that a person has named.
	root, err := openIn(secret, claim+"/up/")
	require.NoError(t, err)
	require.NoError(t, root.Close())
}
