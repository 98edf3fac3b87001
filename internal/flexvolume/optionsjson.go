package flexvolume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// fieldOptions is the name that messages use for the argument that holds the options.
const fieldOptions = "options"

// parseObject parses a single JSON object whose values are all strings, without duplicate keys and with nothing
// after it. Errors are of type *volume.FieldError and never contain a value, because a value may be a secret.
func parseObject(text string) (map[string]string, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	start, err := dec.Token()
	if err != nil {
		return nil, badJSON(dec, err)
	}
	if start != json.Delim('{') {
		return nil, badOptions("are %s, not a JSON object", kindOf(start))
	}
	object := map[string]string{}
	for dec.More() {
		key, value, err := parseMember(dec)
		if err != nil {
			return nil, err
		}
		if _, twice := object[key]; twice {
			return nil, &volume.FieldError{Field: shown(key), Reason: "is given twice; give it once"}
		}
		object[key] = value
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return nil, badJSON(dec, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, badOptions("hold something after the JSON object (at byte %d)", dec.InputOffset())
	}
	return object, nil
}

func parseMember(dec *json.Decoder) (key, value string, err error) {
	token, err := dec.Token()
	if err != nil {
		return "", "", badJSON(dec, err)
	}
	key, ok := token.(string)
	if !ok {
		return "", "", badJSON(dec, nil)
	}
	if token, err = dec.Token(); err != nil {
		return "", "", badJSON(dec, err)
	}
	value, ok = token.(string)
	if !ok {
		return "", "", &volume.FieldError{Field: shown(key), Reason: fmt.Sprintf("is %s; options are strings, so put it in quotes", kindOf(token))}
	}
	return key, value, nil
}

// kindOf returns the type of a JSON value for messages.
func kindOf(token json.Token) string {
	switch v := token.(type) {
	case json.Delim:
		if v == '[' {
			return "an array"
		}
		return "an object"
	case string:
		return "a string"
	case json.Number:
		return "a number"
	case bool:
		return "a boolean"
	}
	return "null"
}

// badJSON returns the error for text that is not JSON, with the position. It leaves out the parser's message,
// which quotes the text.
func badJSON(dec *json.Decoder, err error) error {
	at := dec.InputOffset()
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.Is(err, io.EOF) && at == 0:
		return badOptions("are empty; kubelet gives a JSON object")
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return badOptions("end in the middle of the JSON object")
	}
	return badOptions("are not valid JSON (at byte %d)", at)
}

func badOptions(reason string, args ...any) error {
	return &volume.FieldError{Field: fieldOptions, Reason: fmt.Sprintf(reason, args...)}
}

// shown returns a key as it may appear in messages: shortened, and without the names of a secret's entries.
func shown(key string) string {
	const most = 80
	switch {
	case isSecret(key):
		return keySecret
	case key == "":
		return `""`
	case len(key) > most:
		return fmt.Sprintf("%q…", key[:most])
	}
	if quoted := fmt.Sprintf("%q", key); quoted != `"`+key+`"` {
		return quoted // has characters that must not reach a log or a terminal
	}
	return key
}
