package main

import (
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// placeholders stand in an object for Helm expressions. They survive marshaling to YAML, and the indentation of
// a placeholder's line determines that of its replacement.
type placeholders struct {
	inline []string                          // replace only the placeholder
	line   []func(indent, key string) string // replace the whole line
}

var (
	inlineMark = regexp.MustCompile(`HELMINLINE(\d+)X`)
	lineMark   = regexp.MustCompile(`(?m)^( *(?:- )?)([A-Za-z]+): HELMLINE(\d+)X$`)
)

// in returns a placeholder for an expression inside a string.
func (m *placeholders) in(expression string) string {
	m.inline = append(m.inline, expression)
	return fmt.Sprintf("HELMINLINE%dX", len(m.inline)-1)
}

// whole returns a placeholder for the value of a key; replace returns the key's lines.
func (m *placeholders) whole(replace func(indent, key string) string) string {
	m.line = append(m.line, replace)
	return fmt.Sprintf("HELMLINE%dX", len(m.line)-1)
}

// block returns a placeholder for a map or a list.
func (m *placeholders) block(value string) string {
	return m.whole(func(indent, key string) string {
		return fmt.Sprintf("%s%s: {{- toYaml %s | nindent %d }}", indent, key, value, len(indent)+2)
	})
}

// optional returns a placeholder for a map or a list whose key is left out if it is empty.
func (m *placeholders) optional(value string) string {
	return m.whole(func(indent, key string) string {
		return fmt.Sprintf("%[1]s{{- with %[3]s }}\n%[1]s%[2]s: {{- toYaml . | nindent %[4]d }}\n%[1]s{{- end }}", indent, key, value, len(indent)+2)
	})
}

// merged returns a placeholder for the fields of a map that are merged into another map. The placeholder's key there must sort
// last.
func (m *placeholders) merged(value string) string {
	return m.whole(func(indent, _ string) string {
		return fmt.Sprintf("%[1]s{{- with %[2]s }}\n%[1]s{{- toYaml . | nindent %[3]d }}\n%[1]s{{- end }}", indent, value, len(indent))
	})
}

// write returns an object as a template.
func (m *placeholders) write(fields any) (string, error) {
	text, err := withPlaceholders(fields)
	return m.fill(text), err
}

// withPlaceholders returns YAML in which the placeholders are not yet replaced.
func withPlaceholders(fields any) (string, error) {
	content, err := yaml.Marshal(fields)
	if err != nil {
		return "", fmt.Errorf("write template: %w", err)
	}
	// Template syntax in a manifest is meant literally.
	return strings.ReplaceAll(string(content), "{{", `{{ "{{" }}`), nil
}

// fill replaces the placeholders.
func (m *placeholders) fill(text string) string {
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
