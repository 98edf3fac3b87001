package store

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// glob is a compiled pattern: * and ? match anything but a slash, [a-z] and [!a-z] match one character,
// ** matches anything, and "**/" matches any directories or none. A backslash escapes the next
// character.
type glob struct{ re *regexp.Regexp }

func (g glob) match(name string) bool { return g.re.MatchString(name) }

// compileGlob returns a glob that matches whole names.
func compileGlob(pattern string) (glob, error) {
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case strings.HasPrefix(pattern[i:], "**/"):
			b.WriteString(`(?:.*/)?`)
			i += 2
		case strings.HasPrefix(pattern[i:], "**"):
			b.WriteString(`.*`)
			i++
		case c == '*':
			b.WriteString(`[^/]*`)
		case c == '?':
			b.WriteString(`[^/]`)
		case c == '[':
			class, n, err := compileClass(pattern[i:])
			if err != nil {
				return glob{}, fmt.Errorf("pattern %q: %w", pattern, err)
			}
			b.WriteString(class)
			i += n - 1
		case c == '\\' && i+1 < len(pattern):
			i++
			b.WriteString(quoteByte(pattern[i]))
		default:
			b.WriteString(quoteByte(c))
		}
	}
	b.WriteString(`\z`)
	re, err := regexp.Compile(b.String())
	if err != nil {
		return glob{}, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	return glob{re}, nil
}

// compileClass compiles the class at the start of s, and returns its length in s.
func compileClass(s string) (class string, length int, err error) {
	end := 1
	if end < len(s) && (s[end] == '!' || s[end] == '^') {
		end++
	}
	if end < len(s) && s[end] == ']' {
		end++
	}
	for end < len(s) && s[end] != ']' {
		if s[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(s) {
		return "", 0, fmt.Errorf("[ has no ]; give \\[ for the character itself")
	}
	inner := s[1:end]
	not := ""
	if inner[0] == '!' || inner[0] == '^' {
		not, inner = "^/", inner[1:]
	}
	inner = strings.NewReplacer(`[`, `\[`, `^`, `\^`).Replace(inner)
	if strings.HasPrefix(inner, "]") {
		inner = `\` + inner
	}
	return "[" + not + inner + "]", end + 1, nil
}

// quoteByte quotes a byte that is special in a regular expression. Bytes of characters outside ASCII
// pass, because the caller assembles the pattern byte by byte.
func quoteByte(c byte) string {
	if c < 0x80 {
		return regexp.QuoteMeta(string(rune(c)))
	}
	return string([]byte{c})
}

// globStart returns the index of the first wildcard of key; -1 if there is none.
func globStart(key string) int {
	for i := 0; i < len(key); i++ {
		switch key[i] {
		case '\\':
			i++
		case '*', '?', '[':
			return i
		}
	}
	return -1
}

// unescape removes the escaping backslashes from a key without wildcards.
func unescape(key string) string {
	var b strings.Builder
	for i := 0; i < len(key); i++ {
		if key[i] == '\\' && i+1 < len(key) {
			i++
		}
		b.WriteByte(key[i])
	}
	return b.String()
}

// Selection selects paths of a listing by --include and --exclude, and by patterns of whole paths.
type Selection struct {
	include, exclude []scoped
	paths, elsewhere []glob
}

// scoped is a glob on whole paths, or on base names if the pattern has no slash.
type scoped struct {
	glob
	base bool
}

func (s scoped) match(path string) bool {
	if s.base {
		path = path[strings.LastIndexByte(path, '/')+1:]
	}
	return s.glob.match(path)
}

// NewSelection compiles the patterns.
func NewSelection(include, exclude []string) (Selection, error) {
	var s Selection
	for _, list := range []struct {
		flag     string
		patterns []string
		out      *[]scoped
	}{{"--include", include, &s.include}, {"--exclude", exclude, &s.exclude}} {
		for _, pattern := range list.patterns {
			g, err := compileGlob(pattern)
			if err != nil {
				return Selection{}, fmt.Errorf("%s %w", list.flag, err)
			}
			*list.out = append(*list.out, scoped{g, !strings.Contains(pattern, "/")})
		}
	}
	return s, nil
}

// WithPaths adds patterns of whole paths, in which * and ? also match slashes and no other character is
// special. elsewhere are the patterns of other fetches, which fetch the paths that match them.
func (s Selection) WithPaths(paths, elsewhere []string) Selection {
	for _, p := range paths {
		s.paths = append(s.paths, compileWild(p))
	}
	for _, p := range elsewhere {
		s.elsewhere = append(s.elsewhere, compileWild(p))
	}
	return s
}

func compileWild(pattern string) glob {
	quoted := regexp.QuoteMeta(pattern)
	return glob{regexp.MustCompile(`(?s)\A` + strings.NewReplacer(`\*`, `.*`, `\?`, `.`).Replace(quoted) + `\z`)}
}

// Unselected reports whether no fetch selects a path: there are patterns of whole paths, and it matches
// neither these nor those of other fetches.
func (s Selection) Unselected(path string) bool {
	matches := func(g glob) bool { return g.match(path) }
	return len(s.paths) > 0 && !slices.ContainsFunc(s.paths, matches) && !slices.ContainsFunc(s.elsewhere, matches)
}

// Wants reports whether path is selected: it matches an include and a pattern of whole
// paths, if there are any, and no exclude.
func (s Selection) Wants(path string) bool {
	if len(s.paths) > 0 && !slices.ContainsFunc(s.paths, func(g glob) bool { return g.match(path) }) {
		return false
	}
	for _, g := range s.exclude {
		if g.match(path) {
			return false
		}
	}
	for _, g := range s.include {
		if g.match(path) {
			return true
		}
	}
	return len(s.include) == 0
}
