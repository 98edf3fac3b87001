package nodeagent_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// claimWarnings are the events of claims with that reason.
func (r *rig) claimWarnings(reason string) (out []string) {
	for _, text := range r.api.told(reason) {
		if strings.HasPrefix(text, "PersistentVolumeClaim/") {
			out = append(out, text)
		}
	}
	return out
}

// toldNoMore lets some more rounds look, and fails if any of them has told an event of a reason again.
func (r *rig) toldNoMore(reason string) {
	r.t.Helper()
	r.rounds(2)
	r.api.with(func() { require.Zero(r.t, r.api.repeated[reason], "%s is told again and again", reason) })
}

// A claim is told that its volume waits for room once it can be: it may not be bound yet when that
// is seen first, or the API server may not answer.
func TestClaimIsToldLater(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("big", 70)
	bound := object("large", 50)
	r.claimOf(bound)
	early := bound.DeepCopy()
	early.Spec.ClaimRef.UID = ""
	r.api.put(early)
	r.api.fail(http.StatusServiceUnavailable, "get persistentvolumeclaims")
	r.start()
	r.eventually(func() bool { return len(r.api.told("Shortfall")) == 1 }, "the node is not told")
	r.rounds(2)
	r.api.put(bound)
	r.eventually(func() bool { return r.api.requests("get persistentvolumeclaims") > 1 }, "the claim is not asked for again")
	require.Empty(t, r.claimWarnings("Shortfall"))
	r.api.mend()
	r.eventually(func() bool { return len(r.claimWarnings("Shortfall")) == 1 }, "the claim is not told")
	r.toldNoMore("Shortfall")
	require.Len(t, r.claimWarnings("Shortfall"), 1, "told in every round")
	require.Len(t, r.api.told("Shortfall"), 2)
}

// What a person has to put right is told to the claim, too.
func TestClaimIsToldWhatNeedsAttention(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	away := object("away", 5)
	away.Spec.FlexVolume.Options[volume.OptionGroup] = "elsewhere"
	r.claimOf(away)
	r.api.put(away)
	r.start()
	r.eventually(func() bool { return len(r.claimWarnings("VolumeNeedsAttention")) == 1 }, "the claim is not told")
	require.Contains(t, r.claimWarnings("VolumeNeedsAttention")[0], "data-away: PersistentVolume away needs volume group elsewhere")
}
