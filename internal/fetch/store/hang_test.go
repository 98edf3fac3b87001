package store

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A call that is only slow does not end the run. Nor does a hanging call while other calls return.
func TestUnlessHung(t *testing.T) {
	const stall = 30 * time.Second
	errOver := errors.New("over")
	wait := func(ctx context.Context, d time.Duration) {
		defer TrackCall(ctx, "reading", "a")()
		<-time.After(d)
	}
	for name, test := range map[string]struct {
		stall time.Duration
		f     func(context.Context) error
		after time.Duration
		hung  bool
	}{
		"slow":     {stall, func(ctx context.Context) error { wait(ctx, stall+hangGrace-1); return errOver }, stall + hangGrace - 1, false},
		"hung":     {stall, func(ctx context.Context) error { wait(ctx, stall+hangGrace+1); return errOver }, stall + hangGrace, true},
		"no bound": {0, func(ctx context.Context) error { wait(ctx, 2*time.Hour); return errOver }, 2 * time.Hour, false},
		"many, each short": {stall, func(ctx context.Context) error {
			for range 100 {
				wait(ctx, stall)
			}
			return errOver
		}, 100 * stall, false},
		"it ends by itself after its context": {0, func(ctx context.Context) error {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(time.Second/2, func() { cancel(errOver) })
			wait(ctx, hangGrace)
			return context.Cause(ctx)
		}, hangGrace, false},
		"called after the end of its context": {0, func(ctx context.Context) error {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(errOver)
			wait(ctx, time.Hour)
			return nil
		}, hangCheckInterval + hangGrace, true},
		"others return for a while": {stall, func(ctx context.Context) error {
			go func() {
				for range 59 {
					wait(ctx, time.Second)
				}
			}()
			wait(ctx, time.Hour)
			return errOver
		}, 59*time.Second + hangGrace, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				err := FailIfHung(t.Context(), test.stall, test.f)
				require.Equal(t, test.after, time.Since(began))
				var failed *Error
				require.Equal(t, test.hung, errors.As(err, &failed), "%v", err)
				if !test.hung {
					require.ErrorIs(t, err, errOver)
				}
				<-time.After(2 * time.Hour) // until the hanging calls have returned
			})
		})
	}
}

// Whether the error is retryable depends on what ended the run.
func TestHungAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(Failure(errors.New("no room"), false))
		err := FailIfHung(ctx, 0, func(ctx context.Context) error {
			defer TrackCall(ctx, "reading", "a")()
			<-time.After(time.Hour)
			return nil
		})
		var failed *Error
		require.ErrorAs(t, err, &failed)
		require.False(t, failed.Retryable)
		require.ErrorContains(t, err, "no room")
		<-time.After(2 * time.Hour)
	})
}

func BenchmarkCalling(b *testing.B) {
	_ = FailIfHung(b.Context(), time.Minute, func(ctx context.Context) error {
		ctx, _, stop := WatchStall(ctx, time.Minute)
		defer stop()
		for b.Loop() {
			TrackCall(ctx, "reading", "a")()
		}
		return nil
	})
}
