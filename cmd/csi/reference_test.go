package main

import (
	"testing"

	"github.com/flexlvm/flexlvm/internal/commandtest"
)

func TestReference(t *testing.T) {
	t.Setenv(nodeVariable, "")
	t.Setenv(healthVariable, "")
	commandtest.RequireReference(t, command())
}
