package volumegroup

import (
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

func TestAnnotationOfTheAPI(t *testing.T) {
	require.Equal(t, flexlvmv1.AnnotationTakeAgain, annotation)
}
