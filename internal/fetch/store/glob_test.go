package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGlob(t *testing.T) {
	tests := []struct {
		pattern string
		yes, no []string
	}{
		{"*.csv", []string{"a.csv", ".csv"}, []string{"d/a.csv", "a.csv2", "acsv"}},
		{"d/**", []string{"d/a", "d/a/b"}, []string{"d", "e/a"}},
		{"a/**/b", []string{"a/b", "a/x/b", "a/x/y/b"}, []string{"ab", "a/xb"}},
		{"**/x", []string{"x", "a/x"}, []string{"ax"}},
		{"f?.[a-c]x", []string{"f1.ax", "fé.bx"}, []string{"f/.ax", "f1.dx", "f.ax"}},
		{"[!a]x", []string{"bx"}, []string{"ax", "/x"}},
		{"[]x]", []string{"]", "x"}, []string{"y"}},
		{`a\*b`, []string{"a*b"}, []string{"axb"}},
		{"$(x);.+^", []string{"$(x);.+^"}, []string{"$(x);y+^"}},
		{"é*", []string{"éa\n"}, []string{"e"}},
	}
	for _, test := range tests {
		g, err := compileGlob(test.pattern)
		require.NoError(t, err, test.pattern)
		for _, name := range test.yes {
			require.True(t, g.match(name), "%q should match %q", test.pattern, name)
		}
		for _, name := range test.no {
			require.False(t, g.match(name), "%q should not match %q", test.pattern, name)
		}
	}
	for _, pattern := range []string{"[", "[a", "[z-a]"} {
		_, err := compileGlob(pattern)
		require.Error(t, err, pattern)
	}
}

func TestSelection(t *testing.T) {
	s, err := NewSelection([]string{"*.csv", "img/**"}, []string{"tmp*", "img/raw/*"})
	require.NoError(t, err)
	for path, want := range map[string]bool{
		"a.csv": true, "d/a.csv": true, "img/x": true, "img/raw/x": false, "d/tmp.csv": false, "a.txt": false,
	} {
		require.Equal(t, want, s.Wants(path), path)
	}
	all, err := NewSelection(nil, []string{"*.tmp"})
	require.NoError(t, err)
	require.True(t, all.Wants("x"))
	require.False(t, all.Wants("d/x.tmp"))
	whole, err := NewSelection(nil, []string{"*.tmp"})
	require.NoError(t, err)
	whole = whole.WithPaths([]string{"*cifar*", "a?b"}, []string{"*.csv"})
	for path, wants := range map[string]bool{"cifar/batch_1.bin": true, "x/cifar": true, "a/b": true, "cifar/x.tmp": false, "x.csv": false, "y": false} {
		require.Equal(t, wants, whole.Wants(path), path)
		require.Equal(t, path == "y", whole.Unselected(path), path)
	}
	require.False(t, all.Unselected("y"))
	literal, err := NewSelection(nil, nil)
	require.NoError(t, err)
	require.True(t, literal.WithPaths([]string{"[a].+"}, nil).Wants("[a].+"), "nothing else means anything")
	_, err = NewSelection([]string{"["}, nil)
	require.ErrorContains(t, err, "--include")
}
