package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/mount"
)

func TestIsRead(t *testing.T) {
	for name, c := range map[string]struct {
		mounts []mount.Point
		want   bool
	}{
		"nothing mounted":          {nil, false},
		"the loader":               {[]mount.Point{{Root: "/"}}, false},
		"this one":                 {[]mount.Point{{Root: "/.flexlvm/versions/3", ReadOnly: true}}, true},
		"part of it (subPath)":     {[]mount.Point{{Root: "/.flexlvm/versions/3/a/b"}}, true},
		"another":                  {[]mount.Point{{Root: "/.flexlvm/versions/33", ReadOnly: true}, {Root: "/.flexlvm/versions/2/3", ReadOnly: true}}, false},
		"all of it, for reading":   {[]mount.Point{{Root: "/", ReadOnly: true}}, true},
		"the directory of all":     {[]mount.Point{{Root: "/.flexlvm/versions", ReadOnly: true}}, true},
		"a directory of that name": {[]mount.Point{{Root: "/a/.flexlvm/versions/3"}}, false},
	} {
		require.Equal(t, c.want, isRead(3, c.mounts), name)
	}
}
