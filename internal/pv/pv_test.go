package pv_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestNodeLabelValue(t *testing.T) {
	long := strings.Repeat("a", 63)
	tests := map[string]struct{ node, want string }{
		"short":         {"node-1", "node-1"},
		"dots":          {"node-1.rack-2.example.org", "node-1.rack-2.example.org"},
		"63 characters": {long, long},
		"64 characters": {long + "b", strings.Repeat("a", 46) + "-97aa7c540da47493"},
		"cut at a dot":  {strings.Repeat("a", 45) + "." + strings.Repeat("b", 40), strings.Repeat("a", 45) + "-d7d34b9fb7df86ce"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, pv.NodeLabelValue(tt.node))
		})
	}
}

func TestNodeLabelValueOfLongNames(t *testing.T) {
	seen := map[string]string{}
	for i := range 190 {
		node := strings.Repeat("n", 63) + "." + strings.Repeat("x", i%60+1) + strings.Repeat(".y", i/60+1)
		require.Empty(t, validation.IsDNS1123Subdomain(node))
		value := pv.NodeLabelValue(node)
		require.Empty(t, validation.IsValidLabelValue(value), value)
		require.NotContains(t, seen, value, "two nodes share a label")
		seen[value] = node
	}
}

func TestNamesAreValid(t *testing.T) {
	for _, name := range []string{
		pv.LabelNode, pv.Finalizer, pv.AnnotationCharged,
		pv.AnnotationReclaim, pv.AnnotationWipe, pv.AnnotationOnNodeLoss,
	} {
		require.Empty(t, validation.IsQualifiedName(name), name)
	}
	require.Empty(t, validation.IsDNS1123Subdomain(pv.Provisioner), "it names a CSIDriver and a Lease too")
}

func TestPolicies(t *testing.T) {
	reclaim, err := volume.ParseReclaim("reclaim", "")
	require.NoError(t, err)
	require.Equal(t, volume.ReclaimLazy, reclaim)

	wipe, err := volume.ParseWipe("wipe", "zero")
	require.NoError(t, err)
	require.Equal(t, volume.WipeZero, wipe)

	_, err = volume.ParseOnNodeLoss("onNodeLoss", "Keep")
	var field *volume.FieldError
	require.ErrorAs(t, err, &field)
	require.EqualError(t, err, `onNodeLoss "Keep": is not known; it is one of keep, release`)
}
