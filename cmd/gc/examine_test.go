package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/doctor"
)

func TestChecksAreTheWorstFirst(t *testing.T) {
	got := checks([]doctor.Finding{
		{Level: doctor.OK, Check: "kernel", Detail: "6.1"}, {Level: doctor.Warn, Check: "xfs", Detail: "old"}, {Level: doctor.Fail, Check: "driver", Detail: "gone", Do: "install it"},
	})
	require.Equal(t, []flexlvmv1.Check{
		{Level: "FAIL", Check: "driver", Detail: "gone", Do: "install it"}, {Level: "WARN", Check: "xfs", Detail: "old"}, {Level: "OK", Check: "kernel", Detail: "6.1"},
	}, got)
}
