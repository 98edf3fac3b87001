package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWordsOfAServerAreWordsAlone(t *testing.T) {
	err := &HTTPError{Status: 403, Host: "host", Message: "gr\u00fcn \x1b[2Jno\r\n\u009b8m"}
	require.EqualError(t, err, "host answers 403 Forbidden: gr\u00fcn \uFFFD[2Jno\uFFFD\uFFFD\uFFFD8m")
}
