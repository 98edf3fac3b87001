package page

import (
	"bytes"
	"net/http"
	"time"
)

// events sends the changing part of a window (server-sent events) whenever it changes, but at most once per
// s.atMost.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	out := http.NewResponseController(w)
	q := queryOf(r.URL.Query())
	tick := time.NewTicker(s.atMost)
	defer tick.Stop()
	var last []byte
	var shown *digest
	written := s.now()
	for {
		if d := s.digester.get(); d != shown {
			shown = d
			var now bytes.Buffer
			if err := render(&now, "live", liveOf(d, q, s.now())); err != nil {
				return
			}
			if !bytes.Equal(now.Bytes(), last) {
				last, written = now.Bytes(), s.now()
				if !send(w, out, event(last)) {
					return
				}
			}
		}
		if s.now().Sub(written) >= s.beat { // detects a connection that broke silently
			written = s.now()
			if !send(w, out, []byte(": still here\n\n")) {
				return
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

func send(w http.ResponseWriter, out *http.ResponseController, what []byte) bool {
	if _, err := w.Write(what); err != nil {
		return false
	}
	return out.Flush() == nil
}

// event encodes text as one event: each line becomes a data field.
func event(text []byte) []byte {
	var out bytes.Buffer
	text = bytes.ReplaceAll(text, []byte("\r"), []byte(" ")) // a carriage return would end a line, too
	for line := range bytes.Lines(text) {
		out.WriteString("data: ")
		out.Write(bytes.TrimRight(line, "\n"))
		out.WriteByte('\n')
	}
	out.WriteByte('\n')
	return out.Bytes()
}
