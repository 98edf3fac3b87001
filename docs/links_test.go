package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// Links of documents lead to files and headings that exist.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	var links int
	var broken []string
	known := headings{}
	eachFile(t, func(path, text string) {
		if filepath.Ext(path) != ".md" {
			return
		}
		folder := filepath.Dir(path)
		if strings.HasPrefix(path, "changelog/unreleased/") {
			folder = "." // its text will be part of CHANGELOG.md
		}
		for _, m := range link.FindAllStringSubmatch(withoutCode(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target, anchor, _ := strings.Cut(m[1], "#")
			if target == "" {
				target = path
			} else {
				target = filepath.Join(folder, target)
			}
			links++
			if !known.exists(target, anchor) {
				broken = append(broken, path+": "+m[1])
			}
		}
	})
	require.Greater(t, links, 500)
	require.Empty(t, broken)
}

// Messages, alerts, comments and changes name pages and headings that exist.
func TestNamedPagesExist(t *testing.T) {
	page := regexp.MustCompile(`(?:^|[^\w/.-])(docs/[a-z0-9/-]+\.md)(?:#([a-z0-9-]+))?`)
	var named int
	var missing []string
	known := headings{}
	eachFile(t, func(path, text string) {
		if filepath.Ext(path) == ".md" && !strings.HasPrefix(path, "changelog/") || strings.HasPrefix(path, "examples/from-others/") {
			return // it may name pages of other systems
		}
		for _, m := range page.FindAllStringSubmatch(text, -1) {
			named++
			if !known.exists(m[1], m[2]) {
				missing = append(missing, path+": "+strings.TrimSpace(m[0]))
			}
		}
	})
	require.Greater(t, named, 200)
	require.Empty(t, missing)
}

// eachFile calls f with each file of the repository that may name documents. Paths are relative to its root.
func eachFile(t *testing.T, f func(path, text string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != ".." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".md", ".yaml", ".json", ".sh"}, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		f(strings.TrimPrefix(path, "../"), string(text))
		return err
	}))
}

// headings are the anchors of the pages that were looked at.
type headings map[string]map[string]bool

// exists reports whether a file exists and has a heading with that anchor, if one is given.
func (h headings) exists(file, anchor string) bool {
	if anchor == "" || filepath.Ext(file) != ".md" {
		_, err := os.Stat(filepath.Join("..", file))
		return err == nil
	}
	if h[file] == nil {
		text, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			return false
		}
		h[file] = anchors(string(text))
	}
	return h[file][anchor]
}

// anchors returns the anchors that GitHub creates for the headings of a page.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ +(.+)$`).FindAllStringSubmatch(withoutCode(page), -1) {
		anchor := anchorOf(m[1])
		for base, n := anchor, 1; found[anchor]; n++ {
			anchor = base + "-" + strconv.Itoa(n)
		}
		found[anchor] = true
	}
	return found
}

// anchorOf returns a heading in lower case, with dashes for spaces and without punctuation.
func anchorOf(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(heading))
}

// withoutCode returns a document without its fenced blocks, in which neither headings nor links count.
func withoutCode(text string) string {
	return regexp.MustCompile("(?ms)^ *```.*?^ *```$").ReplaceAllString(text, "")
}
