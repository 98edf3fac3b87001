package disk

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReads(t *testing.T) {
	r := NewReads(time.Minute)
	full := errors.New("it holds data")
	require.ErrorIs(t, r.Check(t.Context(), "a", func(context.Context) error { return full }), full)
	for range 10000 {
		require.NoError(t, r.Check(t.Context(), "a", func(context.Context) error { return nil }), "an answer in time is dropped")
	}
}

// A disk that does not answer is not read again before it does, and the late result is dropped.
func TestReadsOfADiskThatHangs(t *testing.T) {
	r := NewReads(10 * time.Millisecond)
	answers, ended := make(chan struct{}), make(chan struct{})
	hang := func(context.Context) error {
		<-answers
		defer close(ended)
		return nil
	}
	err := r.Check(t.Context(), "a", hang)
	require.ErrorIs(t, err, ErrNoAnswer)
	begun := r.begun["a"].UTC().Format(time.RFC3339)
	require.EqualError(t, err, "disk a is not touched: the disk has not answered since "+begun+"; see the kernel's log (dmesg)")
	again := func(context.Context) error { panic("it is read again") }
	require.EqualError(t, r.Check(t.Context(), "a", again), err.Error())
	require.NoError(t, NewReads(time.Minute).Check(t.Context(), "a", func(context.Context) error { return nil }))

	close(answers)
	<-ended
	full := errors.New("it holds data")
	require.Eventually(t, func() bool {
		return errors.Is(r.Check(t.Context(), "a", func(context.Context) error { return full }), full)
	}, time.Minute, time.Millisecond, "it is not read again")
}

// The end of the caller's context ends the wait.
func TestReadsThatAreNotAwaited(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	answers := make(chan struct{})
	defer close(answers)
	err := NewReads(time.Hour).Check(ctx, "a", func(context.Context) error {
		cancel()
		<-answers
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
}
