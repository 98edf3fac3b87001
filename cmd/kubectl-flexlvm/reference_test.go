package main

import (
	"testing"

	"github.com/flexlvm/flexlvm/internal/commandtest"
)

func TestReference(t *testing.T) {
	commandtest.RequireReference(t, command())
}
