package flexvolume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// fieldOptions is what messages call the argument that holds the options.
const fieldOptions = "options"

// parseObject reads one JSON object whose values are all strings, with no key
// twice and nothing after it. The error is a *volume.FieldError; it never carries
// a value, because a value may be a secret.
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
			return nil, &volume.FieldError{Field: shown(key), Reason: "stands twice among the options; give it once"}
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

// kindOf names the type of a JSON value for people.
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

// badJSON tells where the text stops being JSON. It leaves the parser's own
// words out, which quote the text.
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

// shown is a key as messages may carry it: short, and without the names of a
// secret's entries.
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
		return quoted // holds what a log or a terminal should not be given
	}
	return key
}
