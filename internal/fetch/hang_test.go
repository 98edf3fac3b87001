package fetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// frozen is a store that ignores contexts, like a mounted file system whose server is down. All calls but one return.
type frozen struct {
	object store.Object
	at     string
	until  chan struct{}
}

func (f frozen) call(ctx context.Context, doing string) {
	defer store.TrackCall(ctx, doing, f.object.Key)()
	if doing == f.at {
		<-f.until
	}
}

func (f frozen) List(ctx context.Context, each func(store.Object) error) error {
	f.call(ctx, "listing")
	return each(f.object)
}

func (f frozen) Stat(ctx context.Context, _, _ string) (store.Object, store.Sums, error) {
	f.call(ctx, "looking at")
	return f.object, store.Sums{}, nil
}

func (f frozen) Open(ctx context.Context, _ store.Object, _ store.Span) (store.Stream, error) {
	f.call(ctx, "opening")
	return store.Stream{Body: frozenBody{f, ctx}, Size: f.object.Size}, nil
}

func (frozen) Parts(context.Context, store.Object, int) ([]int64, error) { return nil, nil }

type frozenBody struct {
	frozen
	ctx context.Context
}

func (b frozenBody) Read([]byte) (int, error) {
	b.call(b.ctx, "reading")
	return 0, io.ErrUnexpectedEOF
}

func (frozenBody) Close() error { return nil }

// A run ends although a call to the source does not return, whichever call that is.
func TestSourceHangs(t *testing.T) {
	const stall = 30 * time.Second
	errOver := errors.New("the time is over")
	for _, at := range []string{"listing", "looking at", "opening", "reading"} {
		for _, test := range []struct {
			name           string
			stall, timeout time.Duration
			after          string
			why            error
		}{
			{"stall", stall, 0, "35s", store.ErrStalled},
			{"timeout", stall, 1500 * time.Millisecond, "7s", errOver},
			{"timeout without stall", 0, time.Hour - 1, "1h0m5s", errOver},
		} {
			t.Run(at+", "+test.name, func(t *testing.T) {
				dest := filepath.Join(t.TempDir(), "dest")
				synctest.Test(t, func(t *testing.T) {
					o := store.Object{Key: "/source/a", Size: 3}
					if at == "looking at" {
						o.Size = wholeLimit + 1
					}
					f := frozen{o, at, make(chan struct{})}
					ctx, cancel := context.WithCancel(t.Context())
					limited, stop := ctx, cancel
					if test.timeout > 0 {
						limited, stop = context.WithTimeoutCause(ctx, test.timeout, errOver)
					}
					quiet := logrus.New()
					quiet.SetOutput(io.Discard)
					config := Config{Source: store.Source{Prefix: "/source/"}, Dest: dest, Store: f, Attempts: 3, Stall: test.stall, Log: quiet, SkipSpaceCheck: true}
					began, ended := time.Now(), make(chan struct{})
					err := store.FailIfHung(limited, test.stall, func(ctx context.Context) error {
						defer close(ended)
						_, err := Run(ctx, config, NewProgress(ReadyAfter{}))
						return err
					})
					require.Equal(t, test.after, time.Since(began).String())
					require.ErrorIs(t, err, test.why)
					require.ErrorContains(t, err, at+" /source/a: nothing has come for "+test.after+"; see whether the server of the mounted file system answers")
					var failed *store.Error
					require.ErrorAs(t, err, &failed)
					require.True(t, failed.Retryable)
					close(f.until)
					cancel()
					stop()
					<-ended
				})
			})
		}
	}
}

// A slow disk, or one that blocks while a snapshot is created, does not count as a stalled source:
// received data is not fetched again.
func TestSlowDiskIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := storetest.RandomBytes(1, 10*store.KiB)
		w := &worker{run: &run{progress: &Progress{}, bandwidth: &bandwidth{}}, buf: make([]byte, 4*store.KiB)}
		ctx, watchdog, done := store.WatchStall(t.Context(), time.Second)
		defer done()
		var written []byte
		err := w.receive(ctx, watchdog, bytes.NewReader(data), store.Span{Length: int64(len(data))}, newReceiver(store.Check{}), func(portion []byte, _ int64) error {
			time.Sleep(time.Minute)
			written = append(written, portion...)
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, context.Cause(ctx))
		require.Equal(t, data, written)

		time.Sleep(2 * time.Second) // and then the source is silent
		require.ErrorIs(t, context.Cause(ctx), store.ErrStalled)
	})
}
