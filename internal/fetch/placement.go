package fetch

import (
	"fmt"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Limits of Linux: NAME_MAX, and PATH_MAX minus the NUL and minus room for the destination that a path
// is appended to.
const (
	maxName = 255
	maxPath = 4095 - 256
)

// checkPath returns an error if path cannot be the name of a file below the destination. It is a pure
// function: links in the file system are found when the file is created.
func checkPath(path string) error {
	switch {
	case path == "":
		return fmt.Errorf("the name is empty")
	case len(path) > maxPath:
		return fmt.Errorf("the name has %d bytes; paths may have at most %d", len(path), maxPath)
	case !utf8.ValidString(path):
		return fmt.Errorf("the name is not valid UTF-8")
	}
	for _, c := range path {
		if unicode.IsControl(c) {
			return fmt.Errorf("the name has the control character %U", c)
		}
	}
	for i, name := range strings.Split(path, "/") {
		switch {
		case name == "":
			return fmt.Errorf("the name has an empty path element (a slash at its beginning or end, or two in a row)")
		case name == "." || name == "..":
			return fmt.Errorf("the name has the path element %q, which is not allowed", name)
		case len(name) > maxName:
			return fmt.Errorf("an element of the path has %d bytes; file names may have at most %d", len(name), maxName)
		case i == 0 && fold(name) == store.ControlDir:
			return fmt.Errorf("%s is reserved for fetch", store.ControlDir)
		}
	}
	return nil
}

// fold maps names that a case-insensitive file system treats as equal to the same string: decomposed,
// and with one representative for all cases of a letter.
func fold(name string) string {
	return strings.Map(func(c rune) rune {
		least := c
		for next := unicode.SimpleFold(c); next != c; next = unicode.SimpleFold(next) {
			least = min(least, next)
		}
		return unicode.ToLower(least)
	}, norm.NFD.String(name))
}

// Refusal is an object that is not transferred, and why.
type Refusal struct {
	Key    string
	Reason string
}

func (r Refusal) String() string { return fmt.Sprintf("%q: %s", r.Key, r.Reason) }

// isMarker reports whether an object only marks a folder: the fetched prefix itself or a folder below
// it.
func isMarker(o store.Object) bool {
	return o.Size == 0 && (o.Path == "" || strings.HasSuffix(o.Path, "/"))
}

// placement is a listing divided into files, directories and refused objects.
type placement struct {
	files   []store.Object
	dirs    []string // of directory markers
	refused []Refusal
}

// place decides which objects can be files at their paths. caseInsensitive reports whether the destination's
// file system treats names that differ only by case as equal. If objects collide as file and directory,
// the file is refused, because the directory may hold many. If several names fold to the same one, the
// first by name stays.
func place(objects []store.Object, caseInsensitive bool) placement {
	var p placement
	identity := func(s string) string { return s }
	same := identity
	if caseInsensitive {
		same = fold
	}
	var candidates []store.Object
	for _, o := range objects {
		err := checkPath(strings.TrimSuffix(o.Path, "/"))
		switch {
		case o.Path == "" && isMarker(o): // the marker of the prefix itself
		case o.Unfetchable != "":
			p.refused = append(p.refused, Refusal{o.Key, o.Unfetchable})
		case err != nil:
			p.refused = append(p.refused, Refusal{o.Key, err.Error()})
		case isMarker(o):
			p.dirs = append(p.dirs, strings.TrimSuffix(o.Path, "/"))
		case strings.HasSuffix(o.Path, "/"):
			p.refused = append(p.refused, Refusal{o.Key, "the name ends in a slash and the object is not empty"})
		default:
			candidates = append(candidates, o)
		}
	}
	p.resolveCollisions(candidates, same)
	return p
}

// resolveCollisions adds the candidates that collide with nothing to p.files, and refuses the others.
func (p *placement) resolveCollisions(candidates []store.Object, same func(string) string) {
	sort.Slice(candidates, func(i, j int) bool { return candidates[i].Path < candidates[j].Path })
	dirs := make(map[string]bool)
	for _, dir := range p.dirs {
		for ; dir != "" && !dirs[same(dir)]; dir = destination.Parent(dir) {
			dirs[same(dir)] = true
		}
	}
	for _, o := range candidates {
		for dir := destination.Parent(o.Path); dir != "" && !dirs[same(dir)]; dir = destination.Parent(dir) {
			dirs[same(dir)] = true
		}
	}
	taken := make(map[string]string, len(candidates))
	for _, o := range candidates {
		name := same(o.Path)
		first, there := taken[name]
		switch {
		case dirs[name]:
			p.refused = append(p.refused, Refusal{o.Key, "other objects need a directory of this name"})
		case there && first == o.Path:
			p.refused = append(p.refused, Refusal{o.Key, "another object has the same path"})
		case there:
			p.refused = append(p.refused, Refusal{o.Key, fmt.Sprintf("the destination's file system ignores case, so it is the same file as %q", first)})
		default:
			taken[name] = o.Path
			p.files = append(p.files, o)
		}
	}
}
