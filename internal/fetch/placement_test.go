package fetch

import (
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

func TestCheckPath(t *testing.T) {
	long := strings.Repeat("x", 255)
	tests := map[string]string{
		"a":                              "",
		"a/b.csv":                        "",
		"..a/b..":                        "",
		"$(touch x);&'\"|*?[]\\ é":       "",
		".flexlvmx/a":                    "",
		"a/.flexlvm":                     "",
		long:                             "",
		"":                               "empty",
		"/a":                             "empty path element",
		"a//b":                           "empty path element",
		"a/":                             "empty path element",
		".":                              "is not allowed",
		"../a":                           "is not allowed",
		"a/../../b":                      "is not allowed",
		"a/./b":                          "is not allowed",
		"a/..":                           "is not allowed",
		".flexlvm":                       "reserved for fetch",
		".flexlvm/manifest.jsonl":        "reserved for fetch",
		".FlexLVM/complete":              "reserved for fetch",
		"a\x00b":                         "control character",
		"a\nb":                           "control character",
		"a\x7f":                          "control character",
		"\x1b[2J":                        "control character",
		"a\xff":                          "UTF-8",
		long + "y":                       "at most 255",
		strings.Repeat("abcdefgh/", 500): "paths may have at most",
	}
	for name, want := range tests {
		err := checkPath(name)
		if want == "" {
			require.NoError(t, err, "%q", name)
		} else {
			require.ErrorContains(t, err, want, "%q", name)
		}
	}
}

func FuzzCheckPath(f *testing.F) {
	for _, seed := range []string{"a/b", "../a", "/", "a//b", ".flexlvm/x", "a\x00", "é/ſ", "a/..", "..", "\u202e"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if checkPath(name) != nil {
			return
		}
		joined := path.Join("/dest", name)
		require.Equal(t, "/dest/"+name, joined, "the path means itself")
		require.NotEqual(t, store.ControlDir, strings.Split(strings.ToLower(name), "/")[0])
		require.NotContains(t, name, "\x00")
	})
}

func TestPlace(t *testing.T) {
	object := func(name string) store.Object { return store.Object{Key: "p/" + name, Path: name, Size: 1} }
	tests := map[string]struct {
		objects         []store.Object
		caseInsensitive bool
		files           []string
		dirs            []string
		refused         []string
	}{
		"plain":              {[]store.Object{object("b"), object("a/c")}, false, []string{"a/c", "b"}, nil, nil},
		"leaves":             {[]store.Object{object("../b"), object("a")}, false, []string{"a"}, nil, []string{"p/../b"}},
		"file and directory": {[]store.Object{object("a"), object("a/b"), object("a/c")}, false, []string{"a/b", "a/c"}, nil, []string{"p/a"}},
		"deep":               {[]store.Object{object("a/b"), object("a/b/c/d")}, false, []string{"a/b/c/d"}, nil, []string{"p/a/b"}},
		"case kept":          {[]store.Object{object("A"), object("a")}, false, []string{"A", "a"}, nil, nil},
		"case folded":        {[]store.Object{object("a"), object("A")}, true, []string{"A"}, nil, []string{"p/a"}},
		"composed":           {[]store.Object{object("e\u0301"), object("é")}, true, []string{"e\u0301"}, nil, []string{"p/é"}},
		"folded directory":   {[]store.Object{object("A"), object("a/b")}, true, []string{"a/b"}, nil, []string{"p/A"}},
		"same path twice":    {[]store.Object{object("a"), object("a")}, false, []string{"a"}, nil, []string{"p/a"}},
		"markers": {
			[]store.Object{{Key: "p/", Path: ""}, {Key: "p/d/", Path: "d/"}, {Key: "p/f/", Path: "f/", Size: 3}},
			false, nil, []string{"d"}, []string{"p/f/"},
		},
		"marker and file": {[]store.Object{{Key: "p/d/", Path: "d/"}, object("d")}, false, nil, []string{"d"}, []string{"p/d"}},
		"unfetchable":     {[]store.Object{{Key: "l", Path: "l", Unfetchable: "it is a symbolic link"}}, false, nil, nil, []string{"l"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := place(test.objects, test.caseInsensitive)
			var files, refused []string
			for _, o := range p.files {
				files = append(files, o.Path)
			}
			for _, r := range p.refused {
				refused = append(refused, r.Key)
				require.NotEmpty(t, r.Reason)
			}
			require.Equal(t, test.files, files)
			require.Equal(t, test.dirs, p.dirs)
			require.Equal(t, test.refused, refused)
		})
	}
}
