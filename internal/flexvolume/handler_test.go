package flexvolume

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

const target = "/var/lib/kubelet/pods/b2c1/volumes/flexlvm.io~flexlvm/pvc-1"

// expandOptions are the options that kubelet passes to expandfs, which name no pod.
var expandOptions = with(map[string]string{
	"kubernetes.io/pod.name": "", "kubernetes.io/pod.namespace": "", "kubernetes.io/pod.uid": "", "kubernetes.io/serviceAccount.name": "",
})

func testHandler(e Engine) (handler, *bytes.Buffer) {
	log := logrus.New()
	var out bytes.Buffer
	log.SetOutput(&out)
	return handler{engine: e, log: log, grace: 20 * time.Millisecond}, &out
}

func answer(t *testing.T, h handler, args ...string) Reply {
	t.Helper()
	c, ok, err := parseCall(args)
	require.True(t, ok)
	require.NoError(t, err)
	return h.answer(context.Background(), c)
}

func TestCallsReachTheEngine(t *testing.T) {
	e := &fakeEngine{}
	h, log := testHandler(e)
	ro := with(map[string]string{"kubernetes.io/readwrite": "ro"})
	require.Equal(t, success, answer(t, h, "mount", target, with(nil)))
	require.Equal(t, success, answer(t, h, "mount", target, ro))
	require.Equal(t, success, answer(t, h, "unmount", target))
	require.Equal(t, success, answer(t, h, "expandfs", expandOptions, "", target, "2147483648", "1073741824"))
	require.Equal(t, success, answer(t, h, "settle", "flexlvm", "pvc-1"))

	spec := volume.Spec{
		Group: "flexlvm", Name: "pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11", Size: volume.GiB,
		Layout: volume.Linear, Kind: volume.Claim, Namespace: "shop",
	}
	unnamed := spec
	unnamed.Namespace = ""
	require.Equal(t, []engineCall{
		{verb: "mount", spec: spec, target: target},
		{verb: "mount", spec: spec, target: target, readOnly: true},
		{verb: "unmount", target: target},
		{verb: "expand", spec: unnamed, size: 2 * volume.GiB},
		{verb: "settle", spec: volume.Spec{Group: "flexlvm", Name: "pvc-1"}},
	}, e.calls)
	require.Contains(t, log.String(), "pod=shop/web-0")
}

func TestParseCallRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"init with an argument":      {[]string{"init", "x"}, "arguments of init: takes no arguments, got 1"},
		"mount without arguments":    {[]string{"mount"}, "arguments of mount: takes 2 arguments (mount directory, options), got 0"},
		"settle without a volume":    {[]string{"settle", "flexlvm"}, "arguments of settle: takes 2 arguments"},
		"settle of no name":          {[]string{"settle", "flexlvm", "a/b"}, "volume \"a/b\""},
		"mount without options":      {[]string{"mount", target}, "arguments of mount: takes 2 arguments"},
		"mount as of Kubernetes 1.5": {[]string{"mount", target, "/dev/sda", with(nil)}, "arguments of mount: takes 2 arguments"},
		"mount without a namespace":  {[]string{"mount", target, expandOptions}, "kubernetes.io/pod.namespace"},
		"unmount without a target":   {[]string{"unmount"}, "arguments of unmount: takes 1 argument (mount directory), got 0"},
		"unmount of nothing":         {[]string{"unmount", ""}, "mount directory: is not an absolute path"},
		"unmount of a relative":      {[]string{"unmount", "pods/x"}, `mount directory "pods/x": is not an absolute path`},
		"unmount of two":             {[]string{"unmount", target, target}, "arguments of unmount: takes 1 argument (mount directory), got 2"},
		"expandfs, one missing":      {[]string{"expandfs", expandOptions, "", target, "2"}, "arguments of expandfs: takes 5 arguments (options, device, mount directory, new size, old size), got 4"},
		"expandfs, one too many":     {[]string{"expandfs", expandOptions, "", target, "2", "1", "0"}, "got 6"},
		"expandfs to nothing":        {[]string{"expandfs", expandOptions, "", target, "0", "1"}, `new size "0": must be greater`},
		"expandfs to less than 0":    {[]string{"expandfs", expandOptions, "", target, "-4096", "1"}, `new size "-4096": is not a whole decimal`},
		"expandfs to a fraction":     {[]string{"expandfs", expandOptions, "", target, "4096.5", "1"}, `new size "4096.5": is not a whole decimal`},
		"expandfs to too much":       {[]string{"expandfs", expandOptions, "", target, "99999999999999999999", "1"}, "new size"},
		"expandfs from rubbish":      {[]string{"expandfs", expandOptions, "", target, "2", "x"}, `old size "x"`},
		"expandfs to less":           {[]string{"expandfs", expandOptions, "", target, "1", "2"}, "never shrinks"},
		"expandfs with bad options":  {[]string{"expandfs", "{}", "", target, "2", "1"}, "is missing from the options"},
	} {
		t.Run(name, func(t *testing.T) {
			_, ok, err := parseCall(c.args)
			require.True(t, ok)
			require.ErrorContains(t, err, c.says)
			var field *volume.FieldError
			require.ErrorAs(t, err, &field)
		})
	}
}

func TestUnknownOldSizeIsTolerated(t *testing.T) {
	_, _, err := parseCall([]string{"expandfs", expandOptions, "", target, "4096", "0"})
	require.NoError(t, err)
}

func TestVerbsThatAreNotOurs(t *testing.T) {
	for _, verb := range []string{"getvolumename", "attach", "detach", "waitforattach", "isattached", "mountdevice", "unmountdevice", "expandvolume", "MOUNT", "mount ", "", "-x", "../mount"} {
		_, ok, err := parseCall([]string{verb, "{}"})
		require.False(t, ok, verb)
		require.NoError(t, err)
	}
}

func TestEngineFailures(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	for name, c := range map[string]struct {
		do   func(context.Context) error
		says string
		logs string

		deadline time.Duration
	}{
		"an error": {func(context.Context) error { return errors.New("the group is full") }, "the group is full", "the group is full", time.Minute},
		"a panic":  {func(context.Context) error { panic("index out of range") }, "internal error in the driver", "index out of range", time.Minute},
		"a panic of the runtime's": {func(context.Context) error {
			beyond := len(os.Args)
			return errors.New(os.Args[beyond])
		}, "internal error in the driver", "runtime error: index out of range", time.Minute},
		"an end at the deadline": {func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, "mount did not end within 30ms", "", 30 * time.Millisecond},
		"a hang": {func(context.Context) error {
			<-end // the driver's reply does not wait for it
			return nil
		}, "nor within 20ms more; a device may hang", "", 30 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			h, log := testHandler(&fakeEngine{do: c.do})
			call, _, err := parseCall([]string{"mount", target, with(nil)})
			require.NoError(t, err)
			call.deadline = c.deadline
			got := h.answer(context.Background(), call)
			require.Equal(t, statusFailure, got.Status)
			require.Contains(t, got.Message, c.says)
			require.Contains(t, log.String(), c.logs)
			require.Equal(t, 1, got.ExitCode())
		})
	}
}

func TestReplyLines(t *testing.T) {
	require.Equal(t, "{\"status\":\"Success\"}\n", string(success.Line()))
	require.Equal(t, "{\"status\":\"Not supported\"}\n", string(notSupported.Line()))
	require.Equal(t, 0, success.ExitCode())
	require.Equal(t, 1, notSupported.ExitCode())

	hostile := failure(errors.New("a\nb\r \x00 \xff \u2028 <a&b> \"quoted\" " + strings.Repeat("é", 5000)))
	line := hostile.Line()
	require.Equal(t, 1, bytes.Count(line, []byte("\n")))
	require.Less(t, len(line), maxMessage+200)
	var back Reply
	require.NoError(t, json.Unmarshal(line, &back))
	require.Equal(t, statusFailure, back.Status)
	require.Contains(t, back.Message, "<a&b> \"quoted\"")
}

// TestInitReply reads the constant as kubelet does, over kubelet's own defaults.
func TestInitReply(t *testing.T) {
	type capabilities struct {
		Attach           bool `json:"attach"`
		SELinuxRelabel   bool `json:"selinuxRelabel"`
		SupportsMetrics  bool `json:"supportsMetrics"`
		FSGroup          bool `json:"fsGroup"`
		RequiresFSResize bool `json:"requiresFSResize"`
	}
	for _, before := range []capabilities{{}, {true, true, true, true, true}} {
		got := struct {
			Status       string        `json:"status"`
			Capabilities *capabilities `json:",omitempty"`
		}{Capabilities: &before}
		require.NoError(t, json.Unmarshal([]byte(initReply), &got))
		require.Equal(t, "Success", got.Status)
		require.Equal(t, capabilities{false, true, true, true, true}, *got.Capabilities)
	}
}
