// Package browser uses headless Chromium to check the page of kubectl flexlvm ui with a large screen, a phone, a
// keyboard and a screen reader.
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

// patience bounds steps that take a moment on an idle machine.
const patience = 9 * time.Minute

// A Window is a window of a Chromium that runs until the end of the test.
type Window struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string // Chromium's errors about the page
}

// Open starts Chromium with an empty window, and installs it if it is missing.
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
	require.NoError(t, chromedp.Do(ctx)) // starts it; a deadline on this context would end it
	return w
}

// hear records errors: violations of the page's policy, resources that are not found, and exceptions of its script.
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

// Complaints returns Chromium's errors about the pages so far.
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

// Eval returns the value of a JavaScript expression.
func Eval[T any](w *Window, expression string) T {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	require.NoError(w.t, err, expression)
	return out
}

// Visit navigates to a URL.
func (w *Window) Visit(url string) {
	w.t.Helper()
	w.do(chromedp.Navigate(url))
}

// Until waits until the page's text matches a regular expression.
func (w *Window) Until(text string) {
	w.t.Helper()
	await.Until(w.t, patience, func() string {
		has := Eval[string](w, `document.body?.innerText ?? ""`) // a page that is still loading has no body
		return await.Missing(regexp.MustCompile(text).MatchString(has), "%q is not on the page: %s", text, has)
	})
}

// Type sends key presses.
func (w *Window) Type(keys string) {
	w.t.Helper()
	w.do(chromedp.KeyEvent(keys))
}

// Screen is the screen that the page is shown on.
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

// PicturesEnv is the environment variable for the folder to which pictures for docs/ are written.
const PicturesEnv = "FLEXLVM_PICTURES"

// mostOfPicture is the maximum size of a picture in bytes.
const mostOfPicture = 150 << 10

// Picture saves a screenshot.
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

// FirstPaint returns the time from the start of the navigation to the first contentful paint.
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

// Memory is the page's memory after garbage collection.
type Memory struct {
	Heap    int64 // JavaScript objects
	Private int64 // private memory of the window's process
}

func (m Memory) String() string {
	return fmt.Sprintf("%.1f MB of private memory, of which %.1f MB are JavaScript's heap", float64(m.Private)/1e6, float64(m.Heap)/1e6)
}

// Memory returns the memory of the largest renderer process, which is the only window's. It first forces a garbage
// collection, because otherwise up to 70 MB of garbage may remain.
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

// private returns a process's private memory in bytes (proc(5), smaps_rollup).
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
