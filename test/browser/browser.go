// Package browser has headless Chromium look at the page of kubectl flexlvm ui, as people
// with a large screen, a phone, a keyboard or a screen reader do.
package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/systeminfo"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
	"github.com/flexlvm/flexlvm/test/vm"
)

// patience is for what takes a moment on a machine with nothing else to do.
const patience = 9 * time.Minute

// A Window is one of a Chromium that runs as long as the test.
type Window struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string // what Chromium says of the page
}

// Open starts Chromium, installing it where it is missing, with an empty window.
func Open(t *testing.T) *Window {
	t.Helper()
	root, err := vm.SourceDir()
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "test/setup.sh"), "browser").CombinedOutput()
	require.NoError(t, err, string(out))
	w := &Window{t: t}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("/usr/bin/chromium"), chromedp.UserDataDir(t.TempDir()),
		chromedp.WSURLReadTimeout(patience))
	allocator, end := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	ctx, cancel := chromedp.NewContext(allocator, chromedp.WithListener(w.hear))
	t.Cleanup(func() {
		cancel()
		end()
	})
	w.ctx = ctx
	require.NoError(t, chromedp.Do(ctx)) // starts it; a deadline here would end it
	return w
}

// hear keeps errors: what the page's policy forbids, what it does not find, what its script
// does wrong.
func (w *Window) hear(event any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			w.complaints = append(w.complaints, e.Entry.Text+" "+e.Entry.URL)
		}
	case *runtime.EventExceptionThrown:
		w.complaints = append(w.complaints, e.ExceptionDetails.Text)
	}
}

// Complaints are what Chromium had to say of the pages so far.
func (w *Window) Complaints() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.complaints...)
}

func (w *Window) do(steps ...chromedp.Action[chromedp.Void]) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	require.NoError(w.t, chromedp.Do(ctx, steps...))
}

func call[P, R any](w *Window, c cdp.Command[P, R], params P) R {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	out, err := chromedp.Run(ctx, func(ctx context.Context, t *chromedp.Target) (R, error) { return cdp.Call(ctx, t, c, params) })
	require.NoError(w.t, err)
	return out
}

// Eval is the value of an expression of JavaScript.
func Eval[T any](w *Window, expression string) T {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	require.NoError(w.t, err, expression)
	return out
}

// Visit goes to an address.
func (w *Window) Visit(url string) {
	w.t.Helper()
	w.do(chromedp.Navigate(url))
}

// Until waits until the page has a text.
func (w *Window) Until(text string) {
	w.t.Helper()
	await.Until(w.t, patience, func() string {
		has := Eval[string](w, `document.body?.innerText ?? ""`) // a page that is just loading has no body
		return await.Missing(regexp.MustCompile(text).MatchString(has), "%q is not on the page: %s", text, has)
	})
}

// Type presses keys, as on a keyboard.
func (w *Window) Type(keys string) {
	w.t.Helper()
	w.do(chromedp.KeyEvent(keys))
}

// Screen is what the page is shown on.
type Screen struct {
	Width, Height int64
	Dark          bool
}

// Show changes the screen.
func (w *Window) Show(s Screen) {
	w.t.Helper()
	scheme := "light"
	if s.Dark {
		scheme = "dark"
	}
	call(w, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	options := []chromedp.EmulateViewportOption{}
	if s.Width < 600 {
		options = append(options, chromedp.EmulateMobile, chromedp.EmulatePortrait)
	}
	w.do(chromedp.EmulateViewport(s.Width, s.Height, options...))
}

// PicturesEnv names the folder that pictures for docs/ are written to.
const PicturesEnv = "FLEXLVM_PICTURES"

// mostOfPicture is how large a picture may be, in bytes.
const mostOfPicture = 150 << 10

// Picture takes one of what the screen shows.
func (w *Window) Picture(name string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	require.NoError(w.t, err)
	picture = fewColours(w.t, picture)
	require.LessOrEqual(w.t, len(picture), mostOfPicture, name)
	dir := os.Getenv(PicturesEnv)
	if dir == "" {
		dir = w.t.TempDir()
	}
	require.NoError(w.t, os.WriteFile(filepath.Join(dir, name), picture, 0o644))
}

// FirstPaint is how long after the beginning of its navigation the page showed something.
func (w *Window) FirstPaint() time.Duration {
	w.t.Helper()
	const paints = `performance.getEntriesByName("first-contentful-paint").map(e => e.startTime)`
	var at []float64
	await.Until(w.t, patience, func() string {
		at = Eval[[]float64](w, paints)
		return await.Missing(len(at) == 1, "nothing is painted")
	})
	return time.Duration(at[0] * float64(time.Millisecond))
}

// Memory is what the page takes once garbage is collected.
type Memory struct {
	Heap    int64 // JavaScript's objects
	Private int64 // of the window's process, without what it shares with other processes
}

func (m Memory) String() string {
	return fmt.Sprintf("%.1f MB of private memory, of which %.1f MB are JavaScript's heap", float64(m.Private)/1e6, float64(m.Heap)/1e6)
}

// Memory is that of the largest process that renders: of the only window. Chromium collects
// garbage when it pleases, up to 70 MB of it, so it is told to.
func (w *Window) Memory() (m Memory) {
	w.t.Helper()
	call(w, heapprofiler.CollectGarbage, cdp.Empty{})
	call(w, performance.Enable, performance.EnableParams{})
	for _, metric := range call(w, performance.GetMetrics, cdp.Empty{}).Metrics {
		if metric.Name == "JSHeapUsedSize" {
			m.Heap = int64(metric.Value)
		}
	}
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	processes, err := cdp.Call(ctx, chromedp.FromContext(w.ctx).Browser, systeminfo.GetProcessInfo, cdp.Empty{})
	require.NoError(w.t, err)
	for _, p := range processes.ProcessInfo {
		if p.Type == "renderer" {
			m.Private = max(m.Private, private(w.t, p.ID))
		}
	}
	require.Positive(w.t, m.Heap)
	require.Positive(w.t, m.Private)
	return m
}

// private is what a process shares with no other, in bytes (proc(5), smaps_rollup).
func private(t *testing.T, pid int64) (sum int64) {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^Private_(?:Clean|Dirty): +(\d+) kB$`).FindAllSubmatch(content, -1) {
		kilo, err := strconv.ParseInt(string(m[1]), 10, 64)
		require.NoError(t, err)
		sum += kilo << 10
	}
	return sum
}
