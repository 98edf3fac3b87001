package nodeagent_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// claimWarnings returns the events about claims that have the reason.
func (r *rig) claimWarnings(reason string) (out []string) {
	for _, text := range r.api.told(reason) {
		if strings.HasPrefix(text, "PersistentVolumeClaim/") {
			out = append(out, text)
		}
	}
	return out
}

// toldNoMore runs more rounds and fails if one of them sends another event with the reason.
func (r *rig) toldNoMore(reason string) {
	r.t.Helper()
	r.rounds(2)
	r.api.with(func() { require.Zero(r.t, r.api.repeated[reason], "%s is told again and again", reason) })
}

// A claim gets the Shortfall event as soon as that is possible, even if the shortfall is first observed before the
// claim is bound, or while the API server does not answer.
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

// A problem that needs manual action is also announced on the claim.
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
