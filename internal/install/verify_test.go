package install

import (
	"context"
	"os"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command"
)

func TestVerify(t *testing.T) {
	const works = "#!/bin/sh\n[ \"$*\" = init ] && echo '{\"status\":\"Success\",\"capabilities\":{}}'\n"
	for name, c := range map[string]struct {
		release string
		before  func(t *testing.T, p Place)
		says    string
	}{
		"in place":          {works, func(t *testing.T, p Place) { install(t, p, works) }, ""},
		"not there yet":     {works, func(*testing.T, Place) {}, "is missing or is not this release"},
		"directory is gone": {works, func(t *testing.T, p Place) { mkdir(t, p); require.NoError(t, os.Remove(p.Dir())) }, "is missing or is not this release"},
		"another release":   {works, func(t *testing.T, p Place) { install(t, p, works+"# older") }, "is missing or is not this release"},
		"damaged":           {works, func(t *testing.T, p Place) { install(t, p, works[:20]) }, "is missing or is not this release"},
		"not executable": {works, func(t *testing.T, p Place) {
			install(t, p, works)
			require.NoError(t, os.Chmod(p.Driver(), 0o644))
		}, "is missing or is not this release"},
		"does not run":   {"#!/bin/sh\nexit 3\n", func(t *testing.T, p Place) { install(t, p, "#!/bin/sh\nexit 3\n") }, "init: "},
		"answers other":  {"#!/bin/sh\necho no\n", func(t *testing.T, p Place) { install(t, p, "#!/bin/sh\necho no\n") }, `it answers "no" instead of success`},
		"answers naught": {"#!/bin/sh\n", func(t *testing.T, p Place) { install(t, p, "#!/bin/sh\n") }, `it answers "" instead of success`},
	} {
		t.Run(name, func(t *testing.T) {
			p := place(t)
			c.before(t, p)
			err := p.Verify(context.Background(), binary(t, c.release), command.New(p.Dir(), logrus.New()).Killable)
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
		})
	}
}
