package main

import (
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// marks are placeholders in an object for Helm expressions. They survive marshaling to YAML, and the indentation of
// a mark's line determines that of its replacement.
type marks struct {
	inline []string                          // replace only the mark
	line   []func(indent, key string) string // replace the whole line
}

var (
	inlineMark = regexp.MustCompile(`HELMINLINE(\d+)X`)
	lineMark   = regexp.MustCompile(`(?m)^( *(?:- )?)([A-Za-z]+): HELMLINE(\d+)X$`)
)

// in returns a mark for an expression inside a string.
func (m *marks) in(expression string) string {
	m.inline = append(m.inline, expression)
	return fmt.Sprintf("HELMINLINE%dX", len(m.inline)-1)
}

// whole returns a mark for the value of a key; replace returns the key's lines.
func (m *marks) whole(replace func(indent, key string) string) string {
	m.line = append(m.line, replace)
	return fmt.Sprintf("HELMLINE%dX", len(m.line)-1)
}

// block returns a mark for a map or a list.
func (m *marks) block(value string) string {
	return m.whole(func(indent, key string) string {
		return fmt.Sprintf("%s%s: {{- toYaml %s | nindent %d }}", indent, key, value, len(indent)+2)
	})
}

// optional returns a mark for a map or a list whose key is left out if it is empty.
func (m *marks) optional(value string) string {
	return m.whole(func(indent, key string) string {
		return fmt.Sprintf("%[1]s{{- with %[3]s }}\n%[1]s%[2]s: {{- toYaml . | nindent %[4]d }}\n%[1]s{{- end }}", indent, key, value, len(indent)+2)
	})
}

// merged returns a mark for the fields of a map that are merged into another map. The mark's key there must sort
// last.
func (m *marks) merged(value string) string {
	return m.whole(func(indent, _ string) string {
		return fmt.Sprintf("%[1]s{{- with %[2]s }}\n%[1]s{{- toYaml . | nindent %[3]d }}\n%[1]s{{- end }}", indent, value, len(indent))
	})
}

// write returns an object as a template.
func (m *marks) write(fields any) (string, error) {
	text, err := marked(fields)
	return m.fill(text), err
}

// marked returns YAML in which the marks are not yet replaced.
func marked(fields any) (string, error) {
	content, err := yaml.Marshal(fields)
	if err != nil {
		return "", fmt.Errorf("write template: %w", err)
	}
	// Template syntax in a manifest is meant literally.
	return strings.ReplaceAll(string(content), "{{", `{{ "{{" }}`), nil
}

// fill replaces the marks.
func (m *marks) fill(text string) string {
	text = lineMark.ReplaceAllStringFunc(text, func(line string) string {
		found := lineMark.FindStringSubmatch(line)
		return m.line[number(found[3])](found[1], found[2])
	})
	return inlineMark.ReplaceAllStringFunc(text, func(mark string) string {
		return "{{ " + m.inline[number(inlineMark.FindStringSubmatch(mark)[1])] + " }}"
	})
}

func number(digits string) int {
	var n int
	if _, err := fmt.Sscan(digits, &n); err != nil {
		panic(err) // the pattern matches only digits
	}
	return n
}

// replaceStrings replaces every string of a tree.
func replaceStrings(tree any, replace func(string) string) any {
	switch t := tree.(type) {
	case map[string]any:
		for key, value := range t {
			t[key] = replaceStrings(value, replace)
		}
	case []any:
		for i, value := range t {
			t[i] = replaceStrings(value, replace)
		}
	case string:
		return replace(t)
	}
	return tree
}
