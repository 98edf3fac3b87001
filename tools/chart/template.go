package main

import (
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// marks stand in an object for what Helm fills in. They survive being written as YAML, and
// the line that one is on tells how far what replaces it is indented.
type marks struct {
	inline []string                          // replaces the mark alone
	line   []func(indent, key string) string // replaces the whole line
}

var (
	inlineMark = regexp.MustCompile(`HELMINLINE(\d+)X`)
	lineMark   = regexp.MustCompile(`(?m)^( *(?:- )?)([A-Za-z]+): HELMLINE(\d+)X$`)
)

// in returns a mark for an expression within a string.
func (m *marks) in(expression string) string {
	m.inline = append(m.inline, expression)
	return fmt.Sprintf("HELMINLINE%dX", len(m.inline)-1)
}

// whole returns a mark for the value of a key, of which replace writes the lines.
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

// optional returns a mark for a map or a list without which the key is not there.
func (m *marks) optional(value string) string {
	return m.whole(func(indent, key string) string {
		return fmt.Sprintf("%[1]s{{- with %[3]s }}\n%[1]s%[2]s: {{- toYaml . | nindent %[4]d }}\n%[1]s{{- end }}", indent, key, value, len(indent)+2)
	})
}

// merged returns a mark for the fields of a map, to be put into another map under a key that
// sorts last.
func (m *marks) merged(value string) string {
	return m.whole(func(indent, _ string) string {
		return fmt.Sprintf("%[1]s{{- with %[2]s }}\n%[1]s{{- toYaml . | nindent %[3]d }}\n%[1]s{{- end }}", indent, value, len(indent))
	})
}

// write writes an object as a template.
func (m *marks) write(fields any) (string, error) {
	text, err := marked(fields)
	return m.fill(text), err
}

// marked writes YAML in which the marks are still to be replaced.
func marked(fields any) (string, error) {
	content, err := yaml.Marshal(fields)
	if err != nil {
		return "", fmt.Errorf("write template: %w", err)
	}
	// What looks like a template in a manifest is meant as it stands.
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
		panic(err) // of a pattern of digits alone
	}
	return n
}

// replaceStrings gives every string of a tree to replace.
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
