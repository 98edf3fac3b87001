package provision

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Room on a node that the class does not allow is none.
func TestWhyGoesByTheNodesThatTheClassAllows(t *testing.T) {
	s := newStage(t)
	room := newPendingClaims(s.ledger, s.listers, nil, nil)
	class := storageClass("bound", "flexlvm")
	class.AllowedTopologies = []corev1.TopologySelectorTerm{{
		MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelHostname, Values: []string{"host-1"}}},
	}}
	parameters, err := ParseParameters(class.Parameters)
	require.NoError(t, err)
	spec := parameters.Spec
	spec.Size = 20 * volume.GiB

	s.ledger.Report(storageOf("nameless", 40*volume.GiB))
	cause, message := room.why(class, spec, parameters)
	require.Equal(t, causeNoPool, cause)
	require.Equal(t, "no node that StorageClass \"bound\" allows (allowedTopologies) has volume group \"flexlvm\", which StorageClass \"bound\" asks for; make it with `flexlvm vg create`", message)

	s.ledger.Report(storageOf("node-1", 10*volume.GiB))
	cause, message = room.why(class, spec, parameters)
	require.Equal(t, causeNoRoom, cause)
	require.Equal(t, `no node that StorageClass "bound" allows (allowedTopologies) has room for it: 21474836480 bytes (20 GiB) are asked for, and the most that any of 1 with volume group "flexlvm" can give is `+
		ledger.AmountOf(within(10*volume.GiB))+`, on node "node-1"; it is placed as soon as there is room`, message)

	s.ledger.Report(storageOf("node-1", 30*volume.GiB))
	cause, message = room.why(class, spec, parameters)
	require.Equal(t, causeRoom, cause)
	require.Contains(t, message, `on node "node-1"`, "and not on the roomier one")
}
