package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// A value is a value of the chart: a group of values, or one with a default.
type value struct {
	key          string
	comment      string
	group        []value
	defaultValue any
	schema       map[string]any // the JSON schema without the description
}

// JSON schemas of values.
func ofString() map[string]any  { return map[string]any{"type": "string"} }
func ofBoolean() map[string]any { return map[string]any{"type": "boolean"} }
func ofMap() map[string]any     { return map[string]any{"type": "object"} }
func ofList() map[string]any {
	return map[string]any{"type": "array", "items": map[string]any{"type": "object"}}
}

func ofPattern(pattern string) map[string]any {
	return map[string]any{"type": "string", "pattern": pattern}
}

// ofFlags allows any flag, because programs get new ones. A list sets a flag once per element, and null removes it.
func ofFlags() map[string]any {
	each := []string{"string", "integer", "boolean"}
	return map[string]any{"type": "object",
		"patternProperties": map[string]any{"^[a-z][a-z0-9-]*$": map[string]any{
			"type": append([]string{"array", "null"}, each...), "items": map[string]any{"type": each},
		}},
		"additionalProperties": false}
}

func ofStrings() map[string]any {
	return map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}}
}

// writeValues writes values as YAML, each below its comment.
func writeValues(b *strings.Builder, values []value, indent string) error {
	for _, v := range values {
		for line := range strings.SplitSeq(v.comment, "\n") {
			fmt.Fprintf(b, "%s# %s\n", indent, line)
		}
		if v.group != nil {
			fmt.Fprintf(b, "%s%s:\n", indent, v.key)
			if err := writeValues(b, v.group, indent+"  "); err != nil {
				return err
			}
			continue
		}
		content, err := yaml.Marshal(map[string]any{v.key: v.defaultValue})
		if err != nil {
			return fmt.Errorf("write values: %w", err)
		}
		for line := range strings.Lines(string(content)) {
			b.WriteString(indent + line)
		}
	}
	return nil
}

// schemaOf returns the schema of a group. It rejects unknown keys, so that a misspelt value is not silently
// ignored.
func schemaOf(values []value) map[string]any {
	properties := map[string]any{}
	for _, v := range values {
		s := v.schema
		if v.group != nil {
			s = schemaOf(v.group)
		}
		s["description"] = strings.ReplaceAll(v.comment, "\n", " ")
		properties[v.key] = s
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
}

func writeSchema(values []value) (string, error) {
	schema := schemaOf(values)
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	// Helm adds it to every chart's values.
	schema["properties"].(map[string]any)["global"] = map[string]any{"type": "object"}
	content, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write schema: %w", err)
	}
	return string(content) + "\n", nil
}
