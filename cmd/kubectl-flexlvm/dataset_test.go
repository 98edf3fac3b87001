package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
)

func TestDatasetsAreTold(t *testing.T) {
	d := overview.Dataset{Namespace: "team", Name: "images", ID: "a", State: flexlvmv1.StatePending, Claim: "images-a", Ready: 1, Replicas: 3, Unlisted: 1, Message: "loading", Nodes: []overview.Replica{
		{Node: "node-1", State: flexlvmv1.ReplicaLoading, Progress: flexlvmv1.Progress{Percent: 45, Bytes: 512 << 20, BytesTotal: 1 << 30}},
		{State: flexlvmv1.ReplicaWaiting, Message: "waits for room"},
	}}
	var out bytes.Buffer
	printDatasets(&out, []overview.Dataset{d}, false)
	require.Equal(t, `team/images a: Pending, 1 of 3 replicas ready, claim images-a
  loading
  node-1   [#########-----------]    45%   Loading   512 MiB of 1 GiB
  -        [--------------------]     0%   Waiting   -   waits for room
  and 1 more replica, not listed; total progress 0%
`, out.String())
	require.Equal(t, "["+strings.Repeat("#", barWidth)+"]", bar(100))
	out.Reset()
	printDatasets(&out, nil, false)
	require.Equal(t, "no datasets\n", out.String())
}

// A message may contain text from a server or from a loader's pod. It must not control the terminal.
func TestMessagesDoNotSteerTheTerminal(t *testing.T) {
	var out bytes.Buffer
	o := datasetOptions{output: "table"}
	err := o.show(t.Context(), func(context.Context) ([]overview.Dataset, error) {
		return []overview.Dataset{{Namespace: "team", Name: "images", ID: "a", State: flexlvmv1.StateRunning, Message: "gr\u00fcn\x1b]0;title\a\r\u009b2J", Nodes: []overview.Replica{
			{Node: "node-1", State: flexlvmv1.ReplicaFailed, Message: "\x1b[8mhidden\x1b[0m"},
		}}}, nil
	}, &out, &out, true)
	require.NoError(t, err)
	require.NotContains(t, out.String(), "\x1b")
	require.Contains(t, out.String(), "gr\u00fcn\uFFFD]0;title\uFFFD\uFFFD\uFFFD2J\n")
	require.Contains(t, out.String(), "\uFFFD[8mhidden\uFFFD[0m\n")
}

// A watch prints each change, and ends with the dataset's final state.
func TestDatasetsAreWatched(t *testing.T) {
	states := []flexlvmv1.State{flexlvmv1.StatePending, flexlvmv1.StatePending, flexlvmv1.StateRunning}
	for _, last := range []flexlvmv1.State{flexlvmv1.StateRunning, flexlvmv1.StateFailed} {
		states[2] = last
		looks := 0
		var out bytes.Buffer
		o := datasetOptions{output: "table", watch: true}
		err := o.show(t.Context(), func(context.Context) ([]overview.Dataset, error) {
			looks++
			return []overview.Dataset{{Namespace: "team", Name: "images", ID: "a", State: states[looks-1]}}, nil
		}, &out, &out, true)
		require.Equal(t, last == flexlvmv1.StateFailed, err != nil, err)
		require.Equal(t, 3, looks)
		require.Equal(t, 2, strings.Count(out.String(), clearScreen), "once for each change")
	}
}

// A watch outlasts requests that fail, and ends if the server refuses, or if a dataset is gone.
func TestDatasetsAreWatchedThroughAnOutage(t *testing.T) {
	away, refused := errors.New("connection refused\x1b"), apierrors.NewForbidden(schema.GroupResource{}, "images", errors.New("no"))
	gone := fmt.Errorf("%w images", errNoManager)
	for name, tt := range map[string]struct {
		errs  []error // of the requests; the last that succeeds shows a loaded dataset
		ends  string
		notes int
	}{
		"away twice":          {errs: []error{nil, away, away, nil}, notes: 1},
		"refused once":        {errs: []error{nil, refused, nil}, notes: 1},
		"refused":             {errs: []error{nil, refused, refused}, ends: "forbidden", notes: 1},
		"away from the start": {errs: []error{away}, ends: "connection refused"},
		"deleted":             {errs: []error{nil, gone}, ends: "there is no VolumeManager"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			looks := 0
			var out, notes bytes.Buffer
			o := datasetOptions{output: "table", watch: true}
			err := o.show(t.Context(), func(context.Context) ([]overview.Dataset, error) {
				looks++
				state := flexlvmv1.StatePending
				if looks == len(tt.errs) {
					state = flexlvmv1.StateRunning
				}
				return []overview.Dataset{{Namespace: "team", Name: "images", ID: "a", State: state}}, tt.errs[looks-1]
			}, &out, &notes, false)
			require.Len(t, tt.errs, looks)
			require.Equal(t, tt.notes, strings.Count(notes.String(), "; retrying\n"))
			require.NotContains(t, notes.String(), "\x1b")
			if tt.ends != "" {
				require.ErrorContains(t, err, tt.ends)
				require.NotErrorIs(t, err, errNotLoaded)
				return
			}
			require.NoError(t, err)
			require.Contains(t, out.String(), "team/images a: Running")
		})
	}
	o := datasetOptions{output: "table"}
	err := o.show(t.Context(), func(context.Context) ([]overview.Dataset, error) { return nil, away }, io.Discard, io.Discard, false)
	require.ErrorIs(t, err, away, "without --watch nothing is retried")
}

func TestDatasetsOfANamespace(t *testing.T) {
	manager := func(namespace, name string) client.Object {
		return &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	c := cluster(t, func(client.Client, *corev1.PersistentVolume) {}, manager("team", "images"), manager("team", "texts"), manager("other", "images"))
	for names, want := range map[string]int{"": 2, "images": 1, "images texts": 2} {
		all, err := (&datasetOptions{names: strings.Fields(names)}).datasetsIn(t.Context(), c, "team")
		require.NoError(t, err)
		require.Len(t, all, want)
	}
	_, err := (&datasetOptions{names: []string{"gone"}}).datasetsIn(t.Context(), c, "team")
	require.ErrorContains(t, err, "there is no VolumeManager gone")
	all, err := (&datasetOptions{}).datasetsIn(t.Context(), c, "")
	require.NoError(t, err)
	require.Len(t, all, 3)
}
