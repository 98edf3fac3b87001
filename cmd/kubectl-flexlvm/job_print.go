package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// options returns the options to read a log from its beginning, or its last lines with --tail.
func (o *logOptions) options() *corev1.PodLogOptions {
	out := &corev1.PodLogOptions{}
	if o.tail >= 0 {
		out.TailLines = &o.tail
	}
	return out
}

// A printer prints the lines of several workers without mixing them.
type printer struct {
	mu         sync.Mutex
	out, notes io.Writer
}

// note prints a remark about the logs.
func (p *printer) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.notes, text)
}

// stream prints a worker's log from the API server. If at is not nil, the lines begin with their times, and at
// counts them.
func (p *printer) stream(ctx context.Context, kube kubernetes.Interface, pod *corev1.Pod, worker int, options *corev1.PodLogOptions, at *logPosition) error {
	options.Container = pod.Spec.Containers[0].Name
	log, err := kube.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	if err == nil {
		defer func() { _ = log.Close() }()
		err = p.lines(log, worker, at)
	}
	if err != nil {
		return fmt.Errorf("read the log of worker %d (pod %s): %w", worker, pod.Name, err)
	}
	return nil
}

// maxLine is the maximum length of a line that is printed as one. A progress bar that is redrawn is one
// endless line.
const maxLine = 64 << 10

func (p *printer) lines(log io.Reader, worker int, at *logPosition) error {
	begins, printed := true, false
	for r := bufio.NewReaderSize(log, maxLine); ; {
		line, more, err := r.ReadLine()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			at.repeatLast()
			return err
		}
		if begins {
			line, printed = at.parseLine(line)
		}
		begins = !more
		if printed {
			continue
		}
		p.mu.Lock()
		fmt.Fprintf(p.out, "[%d] %s\n", worker, line)
		p.mu.Unlock()
	}
}

// A logPosition records how far a log with timestamps has been printed: the time of the last line, and the number of
// consecutive lines with that time. Logs can only be requested from a whole second on, so a later stream
// repeats lines.
type logPosition struct {
	time  time.Time
	lines int

	until time.Time // time of the position at which this stream continues; zero once it is reached
	again int       // lines with that time that are still repeated
}

// resume prepares for a stream that starts before the position.
func (at *logPosition) resume() { at.until, at.again = at.time, at.lines }

// parseLine removes the timestamp from a line, and reports whether the line was already printed. Timestamps may
// go back slightly, because a container has two streams. Then lines are printed twice, but none is lost.
func (at *logPosition) parseLine(line []byte) (text []byte, printed bool) {
	if at == nil {
		return line, false
	}
	stamp, text, _ := bytes.Cut(line, []byte(" "))
	is, err := time.Parse(time.RFC3339Nano, string(stamp))
	switch {
	case err != nil:
		return line, false
	case is.Before(at.until):
		return text, true
	case is.Equal(at.until) && at.again > 0:
		at.again--
		return text, true
	}
	if at.until = (time.Time{}); !is.Equal(at.time) {
		at.time, at.lines = is, 0
	}
	at.lines++
	return text, false
}

// repeatLast marks the last line as possibly incomplete, so that it is printed again.
func (at *logPosition) repeatLast() {
	if at != nil && at.lines > 0 {
		at.lines--
	}
}
