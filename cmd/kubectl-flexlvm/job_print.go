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

// options are those of a log that is read from its beginning, or from the lines that are asked for.
func (o *logOptions) options() *corev1.PodLogOptions {
	out := &corev1.PodLogOptions{}
	if o.tail >= 0 {
		out.TailLines = &o.tail
	}
	return out
}

// A printer prints the lines of several workers, each whole.
type printer struct {
	mu         sync.Mutex
	out, notes io.Writer
}

// note says something about the logs.
func (p *printer) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.notes, text)
}

// stream prints what the API server returns of a worker's log. at, if there is one, counts the lines, which have their times then.
func (p *printer) stream(ctx context.Context, kube kubernetes.Interface, pod *corev1.Pod, worker int, options *corev1.PodLogOptions, at *place) error {
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

// longestPiece is how much of a line is printed at once. A bar that is drawn over and over is one line without end.
const longestPiece = 64 << 10

func (p *printer) lines(log io.Reader, worker int, at *place) error {
	begins, printed := true, false
	for r := bufio.NewReaderSize(log, longestPiece); ; {
		line, more, err := r.ReadLine()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			at.broken()
			return err
		}
		if begins {
			line, printed = at.pass(line)
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

// A place is how far a log with the times of its lines is printed: the time of the last line, and how many lines in a row
// have that. A log can be asked for from a whole second on, so a later stream begins with lines that are printed already.
type place struct {
	time  time.Time
	lines int

	until time.Time // of the place where this stream goes on; zero: it is reached
	again int       // lines of that time that are still to come
}

// resume prepares for a stream that begins before the place.
func (at *place) resume() { at.until, at.again = at.time, at.lines }

// pass takes the time off a line, and reports whether the line is printed already. Times may go back by a little, as a
// container has two streams; then lines are printed twice, and none is lost.
func (at *place) pass(line []byte) (text []byte, printed bool) {
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

// broken says that the last line may not be whole: it is printed once more.
func (at *place) broken() {
	if at != nil && at.lines > 0 {
		at.lines--
	}
}
