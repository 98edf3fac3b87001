package nodeagent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

// A confirmation is due once its label has been seen gone for the time of grace. Asking what is due does not count.
func TestDueChangesNothing(t *testing.T) {
	d := &Daemon{stepRetries: newBackoff(time.Second, time.Minute)}
	f := observation{at: evictiontest.Now, moves: []eviction.Move{{PersistentVolume: persistentvolume.Volume{UID: "a"}, Step: eviction.StepConfirm}}}
	require.Empty(t, d.due(f))
	f.at = f.at.Add(time.Hour)
	require.Empty(t, d.due(f), "nothing was noted")
	d.noteUnlabelled(f)
	require.Empty(t, d.due(f))
	f.at = f.at.Add(grace)
	require.Len(t, d.due(f), 1)
	d.noteUnlabelled(f)
	require.Len(t, d.due(f), 1)
	d.noteUnlabelled(observation{})
	require.Empty(t, d.due(f), "the label was back meanwhile")
}
