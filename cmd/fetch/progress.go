package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/flexlvm/flexlvm/internal/fetch"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// Intervals at which progress is shown.
const (
	barInterval  = 200 * time.Millisecond
	jsonInterval = 5 * time.Second
)

// printProgress prints the progress until the returned function is called: as a bar on terminal, or as JSON
// lines on out.
func printProgress(ctx context.Context, out io.Writer, terminal *os.File, format string, progress *fetch.Progress) func() {
	if format == "auto" {
		format = "json"
		if term.IsTerminal(int(terminal.Fd())) {
			format = "bar"
		}
	}
	interval, line := jsonInterval, func(bool) { printJSON(out, progress.Status(time.Now())) }
	switch format {
	case "none":
		return func() {}
	case "bar":
		interval, line = barInterval, func(last bool) {
			width, _, err := term.GetSize(int(terminal.Fd()))
			if err != nil {
				width = 80
			}
			end := ""
			if last {
				end = "\n"
			}
			fmt.Fprintf(terminal, "\r%s\x1b[K%s", bar(progress.Status(time.Now()), width), end)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		line(false)
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				line(false)
			}
		}
	}()
	return func() {
		cancel()
		<-ended
		line(true)
	}
}

func printJSON(out io.Writer, status protocol.Status) {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(struct {
		Time time.Time `json:"time"`
		protocol.Status
	}{time.Now().UTC(), status}) // the reader may be gone
}

// bar formats a status as one line of at most width columns.
func bar(s protocol.Status, width int) string {
	percent := 0
	if s.BytesTotal > 0 {
		percent = int(min(100, s.BytesDone*100/s.BytesTotal))
	}
	text := fmt.Sprintf(" %3d%%  %s of %s  %d/%d files  %s/s", percent,
		fetch.FormatBytes(s.BytesDone), fetch.FormatBytes(s.BytesTotal), s.FilesDone, s.FilesTotal, fetch.FormatBytes(s.BytesPerSecond))
	if s.ETASeconds > 0 {
		text += "  " + (time.Duration(s.ETASeconds) * time.Second).String() + " left"
	}
	switch s.State {
	case protocol.StateListing:
		text = " listing"
	case protocol.StateComplete, protocol.StateFailed:
		text = " " + s.Message
	}
	room := min(30, width-len(text)-3)
	if room < 5 || s.State != protocol.StateFetching {
		text = text[:min(len(text), max(0, width-1))]
		return strings.TrimSpace(strings.ToValidUTF8(text, "")) // a multi-byte character may be cut
	}
	full := room * percent / 100
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", room-full) + "]" + text
}
