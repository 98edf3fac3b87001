package logging_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/logging"
)

type nilStringer struct{ s string }

func (n *nilStringer) String() string { return n.s }

func TestLogrLines(t *testing.T) {
	var out bytes.Buffer
	log, err := logging.New(&out, logging.FormatJSON, "debug")
	require.NoError(t, err)
	logger := logging.Logr(log).WithName("provisioner").WithName("claims").WithValues("PVC", klog.KRef("default", "data"))

	logger.Info("told", "count", 3, "nil", (*nilStringer)(nil), "odd")
	line := decode(t, &out)
	require.Equal(t, "info", line["level"])
	require.Equal(t, "told", line["msg"])
	require.Equal(t, "provisioner.claims", line["logger"])
	require.Equal(t, "default/data", line["PVC"])
	require.EqualValues(t, 3, line["count"])
	require.Equal(t, "<nil>", line["nil"])
	require.Equal(t, "(no value)", line["odd"])

	logger.V(2).Info("in detail")
	require.Equal(t, "debug", decode(t, &out)["level"])

	logger.V(5).Info("whole objects")
	require.Zero(t, out.Len(), "trace is off at level debug")

	logger.Error(errors.New("it broke"), "could not")
	line = decode(t, &out)
	require.Equal(t, "error", line["level"])
	require.Equal(t, "it broke", line["error"])
}

func TestNewRefuses(t *testing.T) {
	_, err := logging.New(nil, "xml", "info")
	require.EqualError(t, err, `log format "xml" is not known; it is text or json`)
	_, err = logging.New(nil, "json", "loud")
	require.ErrorContains(t, err, `log level "loud" is not known`)
}

func decode(t *testing.T, out *bytes.Buffer) map[string]any {
	t.Helper()
	var line map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &line), out.String())
	out.Reset()
	return line
}
