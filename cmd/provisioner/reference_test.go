package main

import (
	"testing"

	"github.com/flexlvm/flexlvm/internal/commandtest"
)

func TestReference(t *testing.T) {
	t.Setenv("HEALTH_ADDRESS", "")
	commandtest.RequireReference(t, command())
}
