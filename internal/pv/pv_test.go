package pv_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestNamesAreValid(t *testing.T) {
	for _, name := range []string{
		pv.LabelNode, pv.Finalizer, pv.AnnotationCharged,
		pv.AnnotationReclaim, pv.AnnotationWipe, pv.AnnotationOnNodeLoss, pv.AnnotationIOLimits, pv.AnnotationTrim, pv.AnnotationProvisionedBy,
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
