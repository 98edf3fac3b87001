// Package logging creates the daemons' logger and redirects the output of client-go and similar libraries to
// it, so that all lines of a process have one format.
package logging

import (
	"fmt"
	"io"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
)

// Formats of a log line.
const (
	FormatText = "text"
	FormatJSON = "json"
)

// New returns a logger that writes lines of the given format ("text" or "json") from the
// given level ("error", "warning", "info", "debug", "trace") upwards.
func New(out io.Writer, format, level string) (*logrus.Logger, error) {
	threshold, err := logrus.ParseLevel(level)
	if err != nil {
		return nil, fmt.Errorf("log level %q is not known; it is one of error, warning, info, debug, trace", level)
	}
	log := logrus.New()
	log.SetOutput(out)
	log.SetLevel(threshold)
	switch format {
	case FormatText:
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true})
	case FormatJSON:
		log.SetFormatter(&logrus.JSONFormatter{})
	default:
		return nil, fmt.Errorf("log format %q is not known; it is %s or %s", format, FormatText, FormatJSON)
	}
	return log, nil
}

// Logr returns log as the logr.Logger that the Kubernetes libraries use.
func Logr(log *logrus.Logger) logr.Logger {
	return logr.New(&sink{entry: logrus.NewEntry(log)})
}

// sink implements logr.LogSink on logrus.
type sink struct {
	entry *logrus.Entry
	name  string
}

// levelOf maps logr's verbosity to a logrus level. The Kubernetes libraries log what an operator needs at 0,
// what helps with a particular problem up to 3, and whole objects and requests from 4 up.
func levelOf(verbosity int) logrus.Level {
	switch {
	case verbosity <= 0:
		return logrus.InfoLevel
	case verbosity <= 3:
		return logrus.DebugLevel
	default:
		return logrus.TraceLevel
	}
}

func (s *sink) Init(logr.RuntimeInfo) {}

func (s *sink) Enabled(verbosity int) bool {
	return s.entry.Logger.IsLevelEnabled(levelOf(verbosity))
}

func (s *sink) Info(verbosity int, msg string, keysAndValues ...any) {
	s.entry.WithFields(fields(keysAndValues)).Log(levelOf(verbosity), msg)
}

func (s *sink) Error(err error, msg string, keysAndValues ...any) {
	entry := s.entry.WithFields(fields(keysAndValues))
	if err != nil {
		entry = entry.WithError(err)
	}
	entry.Error(msg)
}

func (s *sink) WithValues(keysAndValues ...any) logr.LogSink {
	return &sink{entry: s.entry.WithFields(fields(keysAndValues)), name: s.name}
}

func (s *sink) WithName(name string) logr.LogSink {
	if s.name != "" {
		name = s.name + "." + name
	}
	return &sink{entry: s.entry.WithField("logger", name), name: name}
}

// fields pairs keys with values. Errors, Stringers and Marshalers are formatted by their own methods: logrus'
// JSON would otherwise print the internals of an object reference or an error.
func fields(keysAndValues []any) logrus.Fields {
	out := make(logrus.Fields, (len(keysAndValues)+1)/2)
	for i := 0; i < len(keysAndValues); i += 2 {
		key := fmt.Sprint(keysAndValues[i])
		if i+1 == len(keysAndValues) {
			out[key] = "(no value)"
			break
		}
		out[key] = shown(keysAndValues[i+1])
	}
	return out
}

func shown(value any) any {
	switch v := value.(type) {
	case error:
		return v.Error()
	case fmt.Stringer:
		return stringOf(v)
	case logr.Marshaler:
		return v.MarshalLog()
	default:
		return v
	}
}

// stringOf handles a Stringer that is a nil pointer.
func stringOf(v fmt.Stringer) (s string) {
	defer func() {
		if recover() != nil {
			s = "<nil>"
		}
	}()
	return v.String()
}
