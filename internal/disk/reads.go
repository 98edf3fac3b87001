package disk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrNoAnswer: a read of the disk has not ended in time.
var ErrNoAnswer = errors.New("the disk has not answered")

// ReadTime is enough for a busy disk that has to spin up first.
const ReadTime = 30 * time.Second

// Reads bounds the time of checks that read disks. A failing disk may never answer, and nothing can end a system
// call that waits for it. So each check runs in a goroutine of its own, which is left behind if it does not end in
// time, and then its result is dropped. The disk is not read again before the check has ended.
type Reads struct {
	limit time.Duration
	mu    sync.Mutex
	begun map[string]time.Time // of the checks that run, by disk
}

// NewReads returns a Reads whose checks may take limit.
func NewReads(limit time.Duration) *Reads {
	return &Reads{limit: limit, begun: map[string]time.Time{}}
}

// Check returns the error of check, ErrNoAnswer if check, or an earlier one of the same disk, does not end in time, or
// the error of caller if that ends first.
func (r *Reads) Check(caller context.Context, disk string, check func(context.Context) error) error {
	since, running := r.begin(disk)
	if running {
		return noAnswer(disk, since)
	}
	ctx, cancel := context.WithTimeout(caller, r.limit)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := check(ctx)
		r.end(disk)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		if err := caller.Err(); err != nil {
			return fmt.Errorf("disk %s is not checked: %w", disk, err)
		}
		return noAnswer(disk, since)
	}
}

func noAnswer(disk string, since time.Time) error {
	return fmt.Errorf("disk %s is not touched: %w since %s; see the kernel's log (dmesg)", disk, ErrNoAnswer, since.UTC().Format(time.RFC3339))
}

// begin records a check of a disk unless one is running, and returns when the recorded one began.
func (r *Reads) begin(disk string) (since time.Time, running bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since, running = r.begun[disk]; !running {
		since = time.Now()
		r.begun[disk] = since
	}
	return since, running
}

func (r *Reads) end(disk string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.begun, disk)
}
