package store

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWordsOfAServerAreWordsAlone(t *testing.T) {
	err := &HTTPError{Status: 403, Host: "host", Message: "gr\u00fcn \x1b[2Jno\r\n\u009b8m"}
	require.EqualError(t, err, "host answers 403 Forbidden: gr\u00fcn \uFFFD[2Jno\uFFFD\uFFFD\uFFFD8m")
}

func TestWithAdvice(t *testing.T) {
	require.NoError(t, WithAdvice(nil, "denied", "missing"))
	plain := errors.New("plain")
	require.Equal(t, plain, WithAdvice(plain, "denied", "missing"))
	answer := func(status int) error { return fmt.Errorf("get: %w", &HTTPError{Status: status, Host: "host"}) }
	for status, want := range map[int]string{
		401: "get: host answers 401 Unauthorized (denied)",
		403: "get: host answers 403 Forbidden (denied)",
		404: "missing: get: host answers 404 Not Found",
		500: "get: host answers 500 Internal Server Error",
	} {
		err := WithAdvice(answer(status), "denied", "missing")
		require.EqualError(t, err, want)
		require.ErrorAs(t, err, new(*HTTPError))
	}
	require.Equal(t, answer(404), WithAdvice(answer(404), "denied", ""))
}
